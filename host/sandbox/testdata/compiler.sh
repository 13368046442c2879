#!/bin/sh
# Stands in for the program that compiles. The memory that it is given says what it does.
case "$3" in
1) cat >/dev/null; env; pwd; echo "$@" ;;
2) exec sleep 60 ;;
3) exec cat /dev/zero ;;
4) echo 'the type is wrong' >&2; exit 10 ;;
5) echo 'memory allocation of 123 bytes failed' >&2; kill -ABRT $$ ;;
6) kill -XCPU $$ ;;
7) kill -KILL $$ ;;
8) echo "thread 'main' has overflowed its stack" >&2; kill -ABRT $$ ;;
9) exit 1 ;;
10) cat >/dev/null; head -c 1000000 /dev/zero | tr '\0' 'e' >&2; printf code ;;
11) echo 'unreachable code' >&2; exit 101 ;;
12) kill -BUS $$ ;;
esac
