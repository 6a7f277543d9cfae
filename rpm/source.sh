#!/bin/bash
# source.sh VERSION COMMIT TIME FILE.tar.gz: writes the source archive, with the modules and with the
# packages of rpm/sysroot. The same tree makes the same bytes.
set -eu
version=$1 commit=$2 time=$3 file=$4
cd "$(dirname "$0")/.."

mkdir -p "$(dirname "$file")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
name=$(basename "$file" .tar.gz)
tree=$work/$name
mkdir "$tree"

if git rev-parse --git-dir >/dev/null 2>&1; then
  git ls-files -z -co --exclude-standard
else
  find . -type f ! -path './bin/*' ! -path './dist/*' ! -path './nhc-gpu' -print0
fi | sort -zu | while IFS= read -r -d '' f; do [ ! -e "$f" ] || printf '%s\0' "$f"; done | tar --null -T - -c | tar -C "$tree" -x
printf 'VERSION ?= %s\nCOMMIT ?= %s\nSOURCE_DATE_EPOCH ?= %s\n' "$version" "$commit" "$time" >"$tree/rpm/source.mk"

for module in . rpm/tools; do
  rm -rf "$tree/$module/vendor"
  (cd "$tree/$module" && ${GO:-go} mod vendor)
done
# nfpm writes absolute names into an rpm: `rpm2cpio | cpio -id` would overwrite files of the machine.
rpmpack=$tree/rpm/tools/vendor/github.com/google/rpmpack/rpm.go
sed -i 's|^\(\t\tName:  \)f.Name,$|\1"." + f.Name, // changed by rpm/source.sh of nhc-gpu|' "$rpmpack"
grep -q '"." + f.Name' "$rpmpack"
for list in rpm/sysroot/*.debs; do
  KEEP_DEBS=$tree/rpm/sysroot/debs rpm/sysroot/unpack.sh "$list" "$work/sysroot"
done

tar -C "$work" --sort=name --mtime="@$time" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -c "$name" | gzip -9n >"$file"
