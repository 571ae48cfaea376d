"""The words of the game: common English ones without names, plurals in -s and inflected forms."""

from __future__ import annotations

from typing import Literal

from grpo_core import held_out

WORDS = {
    4: """
    able acid aged army atom aunt baby back bake ball band bank barn base bath bead beak beam bean
    bear beat beef bell belt bend bike bird bite blow blue boat body boil bold bone book boot born
    boss both bowl brag bulk burn bush busy cage cake call calm camp cape card care cart case cash
    cave cell chat chef chin chip city clam clay clip club coal coat code coin cold cook cool cope
    copy cord core corn cost crab crew crop crow cube curb cure cute dark dawn deal dear debt deck
    deed deep deer desk dial dice diet dirt dish dive dock door dose dove down drag draw drip drop
    drum duck dull dune dust duty each earn east easy echo edge else even exit face fact fade fair
    fall fame farm fast fate fear feed feel film find fine fire firm fish five flag flat flow foam
    fold folk food foot fork form fort four free frog fuel full fund gain game gate gear gift girl
    give glad glow glue goal goat gold golf good gray grid grip grow gulf half hall halt hand hard
    harm hawk head heal heap hear heat herb herd hero hide high hike hill hint hold hole home hood
    hook hope horn host hour huge hunt hurt idea inch iron item jail join joke jump junk just
    keep kick kind king kite knee knot lace lake lamb lamp land lane last late lawn lazy lead leaf
    lean left lend life lift like limb lime line link lion list live load loaf loan lock long look
    loud love luck lump lung maid mail main male mask mass meal mean meat melt menu mild milk mill
    mind mint miss mode mole mood moon more most move much mule myth nail near neat neck need nest
    news next nice nine node none noon nose note oath obey oven page pain pair palm park part past
    path peak pear pick pile pine pink pipe plan play plot plug poem poet pole pond pool port pose
    pull pump pure push quit race rail rain rank rare read real rent rest rice rich ride ring rise
    risk road roar rock role roof room root rope rose ruby rule rush rust safe sail salt same sand
    save seal seat seed seek self sell send shed ship shoe shop shot show shut sick side sign silk
    sing sink size skin slow snow soap sock soft soil sole song soon soup spin spot star stay stem
    step stir stop suit swan swim tail take talk tall tank tape task taxi team tent term test text
    thin tide tidy time tiny tire toad tone tool town trap tree trip true tube tune turn twig twin
    unit vast veil verb very vest view vine void vote wage wait wake walk wall want warm wash wave
    weak wear weed week well west what wide wife wild wind wine wing wipe wire wise wish wolf wood
    wool word work worm yard year zero zone
    """,
    5: """
    about above actor adopt adult after again agent agree ahead alarm album alert alike alive allow
    alone along among angel anger angle ankle apple apron arena argue arise armor arrow aside asset
    avoid awake award aware badge baker basic basin beach beard beast began begin being below bench
    berry birth black blade blame blank blast blaze blend blind block blood bloom board boast bonus
    boost booth bound brain brake brand brave bread break brick bride brief bring broad broom brown
    brush build bunch burst cabin cable camel candy cargo carry carve catch cause cedar chain chair
    chalk charm chart chase cheap check cheek cheer chess chest chief child chill choir chord civil
    claim class clean clear clerk click cliff climb clock close cloth cloud coach coast color comic
    coral couch count court cover crack craft crane crash cream creek crime crisp cross crowd crown
    crust curve cycle daily dairy dance death delay depth diary dizzy doubt dozen draft drain drama
    dream dress drift drill drink drive eager eagle early earth eight elbow elder elect empty enemy
    enjoy enter entry equal error event every exact exist extra faint faith false fancy fault favor
    feast fence fever field fifth fight final first flame flash fleet flesh float flock flood floor
    flour fluid flute focus force forge found frame fresh front frost fruit funny ghost giant glass
    globe glory glove grace grade grain grand grant grape graph grass great green greet grief group
    grove guard guess guest guide habit happy harsh haste heart heavy hello hobby honey honor horse
    hotel house human humor ideal image index inner input issue ivory jewel joint judge juice knife
    knock label labor large laser later laugh layer learn least leave legal lemon level light limit
    linen liver lobby local lodge logic loose lower loyal lucky lunch magic major maker maple march
    marsh match maybe mayor medal media melon mercy merit merry metal meter minor model money month
    moral motor mount mouse mouth movie music naked nerve never night noble noise north novel nurse
    ocean offer olive onion opera orbit order organ other ought outer owner paint panel paper party
    pasta patch pause peace peach pearl pedal penny phase phone photo piano piece pilot pitch pizza
    place plain plane plant plate plaza point polar porch pound power press price pride prime print
    prize proof proud prove pulse punch pupil purse queen quest quick quiet quilt quite quote radio
    raise ranch range rapid ratio reach react ready realm rebel reply rider ridge rifle right rigid
    rival river roast robin robot rocky rough round route royal rugby ruler rural salad sauce scale
    scene scent score scout sense serve seven shade shake shame shape share shark sharp sheep sheet
    shelf shell shift shine shirt shock shore short shout sight skill skirt sleep slice slide slope
    small smart smell smile smoke snake solar solid solve sound south space spare speak speed spell
    spend spice spoon sport squad stack staff stage stair stamp stand start state steak steam steel
    steep stick stone storm story stove straw strip study stuff style sugar sunny super swamp sweet
    swift swing sword table taste teach thank theme thick thing think third thumb tiger tight title
    toast today token tooth topic torch total touch tough towel tower trace track trade trail train
    treat trend trial tribe trick truck truly trunk trust truth twice uncle under union unity until
    upper urban usage usual value valve video virus visit vital vivid vocal voice voter wagon waist
    watch water weary weigh whale wheat wheel where white whole woman world worry worth wound wrist
    write yacht young youth
    """,
}
"""The words as text, by their number of letters."""


def words_of(split: Literal["train", "eval"], letters: int) -> tuple[str, ...]:
    """Return the words that may be secrets of a split, in alphabetical order.

    A third of the words is held out: no training task has one as its secret or candidate.
    """
    words = sorted({word.lower() for word in WORDS[letters].split()})
    return tuple(word for word in words if held_out(word, 1 / 3) == (split == "eval"))


def known_words(letters: int) -> frozenset[str]:
    """Return all words that count as guesses where a task lists no candidates."""
    return frozenset(word.lower() for word in WORDS[letters].split())
