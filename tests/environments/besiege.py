"""What the tests of machines share: two levels, and valid machines."""

from grpo_env_besiege.levels import LEVELS
from grpo_env_besiege.tree import Tree
from grpo_env_besiege.validity import Machine, check_tree

ROAD, FIELD = LEVELS["car/road"], LEVELS["catapult/field"]
CROSS = ((63, 0, 0), (63, 0, 1), (63, 0, 2), (63, 0, 3))


def machine(built: Tree) -> Machine:
    checked = check_tree(built)
    assert checked.valid, list(map(str, checked.faults))
    assert checked.machine is not None
    return checked.machine
