# For commands that take minutes: prints which step of how many begins, and at the end what each took, the longest
# first. Steps can run side by side. To be sourced.

# NAME is that of the whole command, and COUNT its number of steps.
steps_begin() { # NAME COUNT
  steps_name=$1 steps_count=$2
  steps_folder=$(mktemp -d)
  : >"$steps_folder/started"
  trap steps_end EXIT
}

# Runs a command as the next step. Steps of a command that runs beside others count, too.
step() { # TITLE COMMAND [ARGUMENT...]
  local title=$1 begun=$SECONDS status=0
  shift
  echo "$title" >>"$steps_folder/started"
  # Its own line, because another step may begin at the same time.
  echo "$steps_name: step $(sed -n "/^$title\$/=" "$steps_folder/started") of $steps_count: $title"
  "$@" || status=$?
  printf '%6d s  %s%s\n' $((SECONDS - begun)) "$title" "$([ $status -eq 0 ] || echo ': FAILED')" \
    >>"$steps_folder/took"
  return $status
}

# Runs a command, which may have steps, beside the commands that follow.
beside() { # NAME COMMAND [ARGUMENT...]
  local name=$1
  shift
  set -m # a process group, which steps_end ends
  "$@" >"$steps_folder/$name.output" 2>&1 &
  echo $! >"$steps_folder/$name.group"
  set +m
}

# Waits for that command and shows its output. The status is that of the command.
result() { # NAME
  local status=0
  wait "$(cat "$steps_folder/$1.group")" || status=$?
  rm "$steps_folder/$1.group"
  cat "$steps_folder/$1.output"
  return $status
}

# Also after a failure.
steps_end() {
  local group
  for group in "$steps_folder"/*.group; do
    [ ! -e "$group" ] || kill -- -"$(cat "$group")" 2>/dev/null || true
  done
  [ ! -e "$steps_folder/took" ] || { echo "$steps_name: what each step took:" && sort -rn "$steps_folder/took"; }
  rm -rf "$steps_folder"
}
