#!/bin/sh
# unpack.sh LIST DIR: downloads the Debian packages of a list and unpacks them into DIR. Each line
# of the list has a SHA-256 checksum and an address; a file with another checksum is not unpacked.
# It does nothing if DIR already has exactly that list. Packages in the directory debs beside the
# list are not downloaded; KEEP_DEBS is a directory where it keeps the packages.
set -eu
list=$1 dir=$2

if cmp -s "$list" "$dir/.list"; then
  exit 0
fi
mkdir -p "$(dirname "$dir")"
new=$(mktemp -d "$dir.XXXXXX")
trap 'rm -rf "$new"' EXIT
trap 'exit 1' HUP INT TERM
mkdir "$new/root"
chmod 755 "$new/root"

grep -v '^#' "$list" | while read -r sum url; do
  deb=$new/${url##*/}
  if [ -e "$(dirname "$list")/debs/${url##*/}" ]; then
    cp "$(dirname "$list")/debs/${url##*/}" "$deb"
  elif command -v curl >/dev/null; then
    curl -fsSL --retry 3 --max-time 300 -o "$deb" "$url"
  else
    wget -q --tries=3 -O "$deb" "$url"
  fi || { echo "unpack.sh: cannot download $url" >&2; exit 1; }
  echo "$sum  $deb" | sha256sum --quiet -c - || { echo "unpack.sh: $url has another checksum than $list says" >&2; exit 1; }
  ar p "$deb" data.tar.xz | tar -xJ -C "$new/root"
  if [ -n "${KEEP_DEBS:-}" ]; then
    mkdir -p "$KEEP_DEBS"
    mv "$deb" "$KEEP_DEBS"
  else
    rm "$deb"
  fi
done

# The linker would follow an absolute link out of the directory, to this machine's libraries.
find "$new/root" -type l -lname '/*' | while read -r link; do
  ln -sfnr "$new/root$(readlink "$link")" "$link"
done
cp "$list" "$new/root/.list"
rm -rf "$dir"
mv "$new/root" "$dir"
