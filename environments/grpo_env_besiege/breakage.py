"""Breaks mounts: every 0.2 s, each link whose load exceeds its strength is switched off."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from grpo_env_besiege.model import Array, CompiledMachine


def break_mounts(model: CompiledMachine, data: Any, broken: tuple[int, ...]) -> tuple[int, ...]:
    """Switch overloaded links off, and return the blocks that have come off so far."""
    if not model.mounts:
        return broken
    rows = data.efc_type == mujoco.mjtConstraint.mjCNSTR_EQUALITY
    ids, forces = data.efc_id[rows], data.efc_force[rows]
    newly_broken = []
    for equality, mount in model.mounts:
        load = forces[ids == equality][:3]
        if data.eq_active[equality] and len(load) and float(np.linalg.norm(load)) > mount.force:
            data.eq_active[equality] = 0
            newly_broken.append(mount.block)
    return (*broken, *newly_broken)


def held_bodies(model: CompiledMachine, data: Any) -> Array:
    """Return for each body of the machine whether joints and links still connect it to the root."""
    compiled = model.compiled
    own = model.own.tolist()
    reached = {model.root}
    pairs = [(int(compiled.body_parentid[body]), body) for body in own]
    welds = range(compiled.neq)
    pairs += [
        (int(compiled.eq_obj1id[link]), int(compiled.eq_obj2id[link]))
        for link in welds
        if data.eq_active[link]
    ]
    grown = True
    while grown:
        grown = False
        for a, b in pairs:
            if a != 0 and (a in reached) != (b in reached):
                reached |= {a, b}
                grown = True
    return np.array([body in reached for body in own])
