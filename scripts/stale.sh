#!/usr/bin/env bash
# Finds what refers to code that is gone:
#
# - patches of seeded bugs that do not apply;
# - mutants in tests/mutants.txt of permit_table whose file or function does not exist;
# - labels (W1, O2) in comments and in names of tests, that are not defined where CONTRIBUTING.md says;
# - tests, models and seeded bugs, named in the docs or in comments as `label_words', that do not exist;
# - `Type::member' in comments of native/*/src, where we define the type, but not the member.
set -euo pipefail
cd "$(dirname "$0")/.."

status=0
report() { # LINES WHAT-THEY-ARE
  [ -z "$1" ] || { printf 'stale: %s\n%s\n' "$2" "$1" >&2; status=1; }
}

code=(native/*/src native/*/tests src test)
docs=(README.md CONTRIBUTING.md docs/*.md)
table=native/permit_table
mutants=$table/tests/mutants.txt

git apply --check $table/tests/loom/bugs/*.patch || status=1

# FILE NAME of the function of each mutant: the last name before its arguments. A constant has none.
functions=$(sed -nE '/^#|^$/d
  s/^([a-z_/]+\.rs): .* in (.*)$/\1 \2/; t end
  s/^([a-z_/]+\.rs): replace ([^ ]*[A-Za-z].*) (->.*|with \(\))$/\1 \2/; t end
  s/^([a-z_/]+\.rs): .*/\1 -/
  :end
  s/ .*::/ /; p' $mutants | sort -u)
report "$(while read -r file name; do
  grep -qsE "^ *(pub(\([a-z]+\))? )?(const )?(unsafe )?fn $name\b" "$table/src/$file" ||
    { [ "$name" = - ] && [ -f "$table/src/$file" ]; } || echo "$file: $name"
done <<<"$functions")" "$mutants lists mutants of functions that do not exist:"

# PREFIX FILE for each file that the table of labels names. A name without a folder is in the folder of the first one.
definitions=$(awk '
  /^## / { in_labels = /^## Labels/ }
  in_labels && match($0, /^\| [A-Z]+ \|/) {
    prefix = $2
    folder = ""
    rest = $0
    while (match(rest, /[A-Za-z0-9_\/]+\.(rs|md|erl)/)) {
      file = substr(rest, RSTART, RLENGTH)
      rest = substr(rest, RSTART + RLENGTH)
      if (file ~ /\//) { folder = file; sub(/[^\/]*$/, "", folder) } else file = folder file
      print prefix, file
    }
  }' CONTRIBUTING.md | sort -u)
prefixes=$(cut -d ' ' -f 1 <<<"$definitions" | sort -u | paste -sd '|')
# A definition is at the start of a line, or in bold.
defined=$(while read -r prefix file; do
  grep -hoE "(^ *\"|^%%+ +|^|\*\*)$prefix[0-9]+\b" "$file" | grep -oE "$prefix[0-9]+" || true
done <<<"$definitions" | sort -u)
# In comments, in names of tests, in titles of tests, and in docs.
cited=$(
  grep -rnoE --include='*.rs' --include='*.erl' --include='*.exs' \
    "^ *(//|%|#).*|fn [a-z]+[0-9]+_|\"($prefixes)[0-9]+(, ?[A-Z]+[0-9]+)*:" "${code[@]}"
  grep -noE "\b($prefixes)[0-9]+\b" "${docs[@]}"
)
report "$(awk -F : -v label="^($prefixes)[0-9]+$" -v defined="$(echo $defined)" '
  BEGIN { n = split(defined, labels, " "); for (i = 1; i <= n; i++) is_defined[labels[i]] }
  {
    place = $1 ":" $2
    text = substr($0, length(place) + 2)
    if (sub(/^fn /, "", text)) { sub(/_$/, "", text); text = toupper(text) }
    n = split(text, words, /[^A-Za-z0-9]+/)
    for (i = 1; i <= n; i++) if (words[i] ~ label && !(words[i] in is_defined)) print place ": " words[i]
  }' <<<"$cited")" "labels that are not defined where CONTRIBUTING.md says:"

# The names of tests and models begin with a label; those of seeded bugs are listed in must_fail.rs.
names=$(
  grep -rhoE --include='*.rs' 'fn [a-z0-9_]+' "${code[@]}" | cut -c 4-
  grep -oE '^ +[a-z0-9_]+:$' $table/tests/loom/must_fail.rs | tr -d ' :'
)
lower=$(tr '[:upper:]' '[:lower:]' <<<"$prefixes")
report "$(
  {
    grep -rnoE --include='*.rs' --include='*.erl' "\`(::|[a-z_])*($lower)[0-9]+_[a-z0-9_]+" "${code[@]}"
    grep -noE "\`($lower)[0-9]+_[a-z0-9_]+" "${docs[@]}"
    grep -HnoE "\b($lower)[0-9]+_[a-z0-9_]+" $mutants
  } | awk -F '[:`]' 'NR == FNR { exists[$0]; next } !($NF in exists) { print $1 ":" $2 ": " $NF }' <(echo "$names") -
)" "tests, models or seeded bugs that do not exist:"

# Members are functions, constants, fields and variants. Types of other crates are not checked, nor what is derived.
report "$(find native/*/src -name '*.rs' | xargs awk '
  { comment = $0 ~ /^ *\/\// }
  # An item at the left margin, or in a module there.
  !comment && /^(    )?(pub(\([a-z]+\))? )?(unsafe )?(impl|struct|enum|union|trait|type)[ <]/ {
    delete types
    text = $0
    sub(/ where .*/, "", text)
    is_definition = text !~ /^[a-z() ]*impl[ <]/
    while (match(text, /[A-Z][A-Za-z0-9]*/)) {
      name = substr(text, RSTART, RLENGTH)
      types[name]
      if (is_definition) { is_ours[name]; break }
      text = substr(text, RSTART + RLENGTH)
    }
  }
  !comment {
    text = $0
    sub(/^ *(pub(\([a-z]+\))? )?/, "", text)
    if (match(text, /(fn|const|type) [A-Za-z0-9_]+/)) text = substr(text, RSTART + index(substr(text, RSTART), " "))
    sub(/[^A-Za-z0-9_].*/, "", text)
    for (name in types) members[name "::" text]
  }
  comment {
    text = $0
    while (match(text, /`[A-Z][A-Za-z0-9]*::[A-Za-z0-9_]+/)) {
      cited[FILENAME ":" FNR ": " substr(text, RSTART + 1, RLENGTH - 1)]
      text = substr(text, RSTART + RLENGTH)
    }
  }
  END {
    for (place in cited) {
      path = place
      sub(/.* /, "", path)
      name = path
      sub(/::.*/, "", name)
      if (name in is_ours && !(path in members) && path !~ /::default$/) print place
    }
  }' | sort)" "members of types that do not exist:"
exit $status
