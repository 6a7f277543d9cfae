#!/bin/sh
# files.sh list PACKAGE...: prints the lines of rpm/files for these packages, with the directories
# that the environment names (SBIN, UNITS...), and each tree as its files and directories.
# files.sh install DEST PACKAGE...: installs these files below DEST. PROGRAM is the program, HOST one
# of the same version that this machine can start.
# files.sh nfpm FORMAT STAGE PACKAGE: prints the contents of a package for nfpm, from the files below
# STAGE.
set -eu
cd "$(dirname "$0")/.."

list() {
  sed 's/#.*//' rpm/files | while read -r package path mode type source; do
    case " $* " in *" $package "*) ;; *) continue ;; esac
    base=${path%%/*}
    eval "path=\${$base:?}${path#"$base"}"
    if [ "$type" != tree ]; then
      echo "$package $path $mode $type $source"
      continue
    fi
    find "$source" -type d -o -type f | LC_ALL=C sort | while read -r name; do
      if [ -d "$name" ]; then echo "$package $path${name#"$source"} 755 dir -"
      else echo "$package $path${name#"$source"} $mode file $name"
      fi
    done
  done
}

install_one() { # PATH MODE TYPE SOURCE
  install -d "$(dirname "$1")"
  case $3 in
    dir) [ -d "$1" ] || install -d -m "$2" "$1" ;; # a site may have given /etc/nhc another mode
    link) ln -sfn "$4" "$1" ;;
    program) install -m "$2" "$PROGRAM" "$1" ;;
    script) sed "s,/usr/sbin/nhc-gpu,$SBIN/nhc-gpu,g" "$4" | install -m "$2" /dev/stdin "$1" ;;
    made) # shellcheck disable=SC2086  # a list of words
      made=$("$HOST" $4); echo "$made" | install -m "$2" /dev/stdin "$1" ;;
    *) install -m "$2" "$4" "$1" ;;
  esac
}

contents() { # FORMAT STAGE
  doc=file
  [ "$1" != rpm ] || doc=doc # nfpm leaves files of the type doc out of a .deb
  while read -r _ path mode type source; do
    src=$2$path
    case $type in
      man) path=$path.gz; kind=$doc ;;
      config) kind="config|noreplace" ;;
      dir) src=; kind=dir ;;
      link) src=$source; kind=symlink ;;
      *) case $path in "$SHARE"/doc/*) kind=$doc ;; *) kind=file ;; esac ;;
    esac
    if [ "$type" = man ]; then
      gzip -9nc "$src" >"$src.gz"
      src=$src.gz
    fi
    echo "  - {dst: '$path', src: '$src', type: '$kind', file_info: {mode: 0$mode, owner: root, group: root}}"
  done
}

verb=$1
shift
case $verb in
  list) list "$@" ;;
  install)
    dest=$1
    shift
    list "$@" | while read -r _ path mode type source; do
      install_one "$dest$path" "$mode" "$type" "$source" </dev/null
    done ;;
  nfpm) list "$3" | contents "$1" "$2" ;;
esac
