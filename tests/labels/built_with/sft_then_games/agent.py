import phases

start = phases.warm_up("models/base")
phases.improve(start)
