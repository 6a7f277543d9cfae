#!/bin/sh
# package.sh OUT: writes rpm, deb and an SBOM of each program of RELEASE_DIR for ARCHES, and
# SHA256SUMS of all files of OUT. `make packages` sets the environment.
set -eu
out=$1
cd "$(dirname "$0")/.."

# Neither format allows the "-" of 1.2.3-4-gabcdef0, which is newer than 1.2.3 and older than 1.2.4.
rpm_version=$(echo "$VERSION" | sed 's/-/^/; s/-/./g')
deb_version=$(echo "$VERSION" | sed 's/-/+/; s/-/./g')
time=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
packager=${PACKAGER:-nhc-gpu <nhc-gpu@localhost>}

package() { # FORMAT NAME PART ARCH STAGE
  case $1 in
    deb) version=$deb_version HELPERS=/usr/lib/nhc text='/ # rpm$/d' ;;
    # an rpm has the first line of the description as its summary, and no "." for an empty line
    rpm) version=$rpm_version HELPERS=/usr/libexec/nhc text='/^description/{n;d}; s/^  \.$//' ;;
  esac
  export HELPERS
  echo "- {semver: '$version-1', date: $time, packager: '$packager', deb: {urgency: medium, distributions: [stable]}, changes: [note: 'See CHANGELOG.md.']}" >"$work/changelog.yaml"
  {
    sed "$text; s|@ARCH@|$4|; s|@VERSION@|$version|; s|@TIME@|$time|; s|@CHANGELOG@|$work/changelog.yaml|; s|@COMMIT@|${COMMIT:-unknown}|; s|@KEY@|${SIGN_KEY:-}|
      s|@PACKAGER@|$packager|" "rpm/$2.yaml"
    echo "contents:"
    rpm/files.sh nfpm "$1" "$5" "$3"
  } >"$work/$2.yaml"
  "$RELEASE_DIR/nfpm" package --config "$work/$2.yaml" --packager "$1" --target "$out" >/dev/null
}

mkdir -p "$out"
rm -f "$out"/*.deb "$out"/*.rpm "$out"/*.cdx.json "$out"/SHA256SUMS*
for arch in $ARCHES; do
  PROGRAM=$RELEASE_DIR/linux-$arch/nhc-gpu rpm/files.sh install "$work/$arch" main
  package deb nhc-gpu main "$arch" "$work/$arch"
  package rpm nhc-gpu main "$arch" "$work/$arch"
  "$RELEASE_DIR/sbom" "$RELEASE_DIR/linux-$arch/nhc-gpu" "$VERSION" >"$out/nhc-gpu-$VERSION-$arch.cdx.json"
done
rpm/files.sh install "$work/all" compat
package deb nhc-gpu-compat compat all "$work/all"
package rpm nhc-gpu-compat compat all "$work/all"

cd "$out"
find . -maxdepth 1 -type f ! -name 'SHA256SUMS*' -printf '%f\n' | LC_ALL=C sort | xargs sha256sum >SHA256SUMS
if [ -n "${SIGN_KEY:-}" ]; then
  GNUPGHOME=$work/gnupg
  export GNUPGHOME
  mkdir -m 700 "$GNUPGHOME"
  sign() { printf '%s' "${NFPM_PASSPHRASE:-}" | gpg --batch --quiet --pinentry-mode loopback --passphrase-fd 0 "$@"; }
  sign --import "$SIGN_KEY"
  sign --armor --detach-sign --output SHA256SUMS.asc SHA256SUMS
  gpgconf --kill gpg-agent
fi
