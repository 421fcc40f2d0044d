#!/bin/sh
# Stands for the fabricgate binary in tests of the attendant: as a guard
# (`node guard --parent PID -- ARGV`) it becomes what it guards, else it runs its
# first word as a script.
if [ "$2" = guard ]; then
    shift 5
    exec "$@"
fi
exec sh -c "$1"
