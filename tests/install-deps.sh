#!/bin/sh
# install-deps.sh installs the programs that the test suites need, as root on Debian or Ubuntu.
# Elsewhere it does nothing: a suite without a required program is skipped and names it. It starts
# no service, and does nothing if all are installed.
set -eu

say() { echo "install-deps: $*"; }

packages="make gcc libc6-dev binutils ca-certificates git curl xz-utils
  slurmctld slurmd slurm-client munge
  rsyslog systemd procps e2fsprogs strace
  infiniband-diags perftest iproute2 nftables
  rpm cpio debootstrap debian-archive-keyring
  bash-completion groff-base"
# make test-all
[ "${NHC_GPU_TESTS:-}" != all ] || packages="$packages slurmdbd mariadb-server clustershell prometheus prometheus-node-exporter chromium-headless-shell
  gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static ansible ansible-lint yamllint gnupg lintian rpmlint"

if [ "$(id -u)" != 0 ]; then
  say "not root, nothing installed: suites that need root or a program that is missing are skipped"
  exit 0
fi
if ! command -v apt-get >/dev/null; then
  say "no apt-get here, nothing installed: suites are skipped where a program is missing"
  exit 0
fi

missing=
for package in $packages; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
say "installing$missing"

# Debian starts a service as soon as it is installed, unless this says no.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
  trap 'rm -f $policy' EXIT
  printf '#!/bin/sh\nexit 101\n' >$policy
  chmod 755 $policy
fi

export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086  # a list of words
if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing >/dev/null; }; then
  say "apt-get did not install$missing: suites that need them are skipped"
fi
