// Which groups match, in the single file. The server answers the same question from its index.

const PAGE = 50;

const within = (value, low, high) =>
  value !== null &&
  value !== undefined &&
  (low === undefined || low === "" || value >= Number(low)) &&
  (high === undefined || high === "" || value <= Number(high));
const given = (low, high) => (low ?? "") !== "" || (high ?? "") !== "";
const flag = (wanted, value) => !wanted || (wanted === "yes") === value;

function rolloutMatches(rollout, filter) {
  return (
    (!given(filter.reward_from, filter.reward_to) ||
      within(rollout.reward, filter.reward_from, filter.reward_to)) &&
    (!given(filter.tokens_from, filter.tokens_to) ||
      within(rollout.tokens, filter.tokens_from, filter.tokens_to)) &&
    (!filter.part ||
      !given(filter.part_from, filter.part_to) ||
      within(rollout.parts[filter.part], filter.part_from, filter.part_to)) &&
    flag(filter.passed, rollout.passed) &&
    flag(filter.truncated, rollout.finish === "length") &&
    flag(filter.duplicate, rollout.duplicate) &&
    flag(filter.error, rollout.error)
  );
}

const groupMatches = (group, filter) =>
  (!filter.split || group.split === filter.split) &&
  (!filter.environment || group.environment === filter.environment) &&
  ((filter.task ?? "") === "" || group.task === Number(filter.task)) &&
  (!given(filter.steps_from, filter.steps_to) ||
    within(group.step, filter.steps_from, filter.steps_to));

const ORDERS = {
  log: (group) => group.id,
  reward: (group) => group.reward_mean,
  tokens: (group) => group.tokens_mean,
  spread: (group) => (group.reward_high === null ? null : group.reward_high - group.reward_low),
};

/** Return one page of the groups with a matching rollout, and a function that counts all. */
export async function matching(groups, filter, texts, progress) {
  let found = [];
  let rollouts = 0;
  const chunks = new Map();
  for (const group of groups) {
    if (!groupMatches(group, filter)) continue;
    let members = group.members.filter((rollout) => rolloutMatches(rollout, filter));
    if (members.length && texts) {
      if (!chunks.has(group.chunk)) {
        progress(group.id / groups.length);
        chunks.set(group.chunk, await texts(group.chunk));
      }
      const attempts = chunks.get(group.chunk).get(`${group.step}/${group.split}/${group.number}`);
      members = members.filter((rollout) => attempts?.has(rollout.attempt));
    }
    if (!members.length) continue;
    rollouts += members.length;
    found.push(group);
  }
  const value = ORDERS[filter.order] ?? ORDERS.log;
  const sign = filter.descending === "no" ? 1 : -1;
  // As in the server's index: groups without a value come last, equal ones in the log's order.
  found = found.sort((a, b) => {
    const [first, second] = [value(a), value(b)];
    if (first === null || second === null)
      return (first === null) - (second === null) || a.id - b.id;
    return sign * (first - second) || a.id - b.id;
  });
  const start = PAGE * Number(filter.page ?? 0);
  const count = async () => ({ groups: found.length, rollouts });
  return { count, page_size: PAGE, rows: found.slice(start, start + PAGE) };
}
