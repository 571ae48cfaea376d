"""Search for shortcuts: cheap ways of answering that a lazy policy could learn in place of a task.

`strategies` composes them, `hunt` judges them, `findings` says which of them pay.
"""
