# For commands that take minutes: prints which step of how many begins, and at the end what each took, the longest
# first. To be sourced.

# NAME is that of the whole command, and COUNT its number of steps.
steps_begin() { # NAME COUNT
  steps_name=$1 steps_count=$2
  steps_folder=$(mktemp -d)
  : >"$steps_folder/started"
}

# Runs a command as the next step. Steps of a subshell count, too.
step() { # TITLE COMMAND [ARGUMENT...]
  local title=$1 begun=$SECONDS status=0
  shift
  echo >>"$steps_folder/started"
  echo "$steps_name: step $(wc -l <"$steps_folder/started") of $steps_count: $title"
  "$@" || status=$?
  printf '%6d s  %s%s\n' $((SECONDS - begun)) "$title" "$([ $status -eq 0 ] || echo ': FAILED')" \
    >>"$steps_folder/took"
  return $status
}

# Also after a failure.
steps_end() {
  [ ! -e "$steps_folder/took" ] || { echo "$steps_name: what each step took:" && sort -rn "$steps_folder/took"; }
  rm -rf "$steps_folder"
}
