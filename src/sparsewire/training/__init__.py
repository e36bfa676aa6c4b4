"""A training from step to step, for any framework: memories, schedules, layouts, nodes, local steps."""
