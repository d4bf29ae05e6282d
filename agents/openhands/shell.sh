#!/bin/sh
# A bash that comes back: OpenHands' terminal would wait until a command's time is up for one that `exit` has ended.
trap : INT
while [ -t 0 ]; do
    bash "$@"
done
