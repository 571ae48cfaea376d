"""Score answers to one task, without a model, a GPU or torch.

python examples/01_score_one_answer.py
"""

from grpo_core import Rollout, TaskKey
from grpo_core.plugins.environments import load_environment
from grpo_core.plugins.host import PluginHost

ANSWERS = ("<answer>{right}</answer>", "<answer>{wrong}</answer>", "The answer is {right}.")


def main() -> None:
    environment = load_environment(PluginHost(), "arithmetic")
    # The same key always gives the same task.
    task = environment.task(TaskKey("arithmetic", "train", index=3))
    print(f"The model is asked: {task.prompt[-1].content}")
    for answer in ANSWERS:
        text = answer.format(right=task.data.answer, wrong=task.data.answer + 1)
        verdict = environment.verify(task, Rollout.of(text))
        parts = ", ".join(f"{name} {reward.value:g}" for name, reward in verdict.rewards.items())
        result = "passed" if verdict.passed else "not passed"
        print(f"{text!r:32} reward {verdict.total:.1f}  {result}  ({parts})")


if __name__ == "__main__":
    main()
