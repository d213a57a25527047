#!/bin/bash
# Stands in for Hadoop's native container-executor, which Maven has not: it starts, signals and deletes what the
# NodeManager's LinuxContainerExecutor asks for, as root, and puts containers into the cgroups that the NodeManager made.
case "$1" in --*) exit 0 ;; esac
user=$2 command=$3
shift 3
case "$command" in
0) # localize: application, localizer, tokens, local directories, log directories, command line
  directory="${4%%\%*}/usercache/$user/appcache/$1"
  mkdir -p "$directory" && cp "$3" "$directory/" && cd "$directory" || exit 1
  shift 5
  exec "$@"
  ;;
1) # launch: application, container, work directory, script, tokens, --http, pid file, local and log directories, groups
  work=$3 pid_file=$7 groups=${10#cgroups=}
  mkdir -p "$work" "${9%%\%*}/$1/$2" || exit 1
  cp "$4" "$work/launch_container.sh" && cp "$5" "$work/container_tokens" || exit 1
  export work pid_file groups
  setsid bash -c '
    IFS=%
    for file in $groups; do
      [ "$file" = none ] && continue
      echo $$ >"$file" || exit 1
      # The NodeManager makes no group for accounting, where that is a controller of its own.
      usage=${file/\/cgroup\/cpu\//\/cgroup\/cpuacct\/}
      [ "$usage" = "$file" ] || { mkdir -p "${usage%/*}" && echo $$ >"$usage"; } || exit 1
    done
    echo $$ >"$pid_file.tmp" && mv "$pid_file.tmp" "$pid_file" && cd "$work" && exec bash launch_container.sh' &
  wait $!
  code=$?
  echo "$code" >"$pid_file.exitcode"
  exit "$code"
  ;;
2) kill "-$2" -- "-$1" ;; # signal: process group, number
3) rm -rf "$1" ;;         # delete: path
*) exit 1 ;;
esac
