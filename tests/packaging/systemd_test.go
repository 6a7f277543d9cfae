package packaging_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// A system boots with systemd as process 1. The check before slurmd fails and drains, slurmd starts
// after it, and another check after slurmd. The restricted unit of the timer still mounts for the node, reads the kernel's
// log, makes a device, and runs a command as another user. The monitor starts, and again after its death.
func TestUnitsUnderSystemd(t *testing.T) {
	tier.All(t)
	t.Parallel()
	k := makePackages(t)
	s := newSystem(t, "bookworm", false)
	s.install(s.pkg(k, k.dir, program))
	s.must(site + `echo n1 >/etc/hostname
cat >/etc/nhc/nhc.conf <<'E'
* || site_check
* || mkdir -p /opt/mounted && mount -t tmpfs tmpfs /opt/mounted
* || [ -r /dev/null ] && mknod /opt/null c 1 3 && echo >/opt/null
* || su -s /bin/sh nobody -c id
* || touch /opt/passed
E
touch /opt/faulty
cat >/etc/systemd/system/slurmd.service <<'E'
[Unit]
DefaultDependencies=no
[Service]
ExecStart=/bin/sleep infinity
E
cat >/etc/systemd/system/look.service <<'E'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/opt/look
ExecStopPost=/bin/systemctl --force --force poweroff
[Install]
WantedBy=multi-user.target
E
cat >/opt/look <<'E'
#!/bin/bash
exec >/mnt/looked 2>&1
echo "boot $(systemctl show -P Result nhc-gpu-boot.service) slurmd $(systemctl is-active slurmd.service)"
boot=$(systemctl show -P ExecMainExitTimestampMonotonic nhc-gpu-boot.service)
slurmd=$(systemctl show -P ExecMainStartTimestampMonotonic slurmd.service)
[ "$boot" -gt 0 ] && [ "$boot" -lt "$slurmd" ] && echo "slurmd after the check"
until [ "$(systemctl show -P ExecMainExitTimestampMonotonic nhc-gpu.service)" -gt "$slurmd" ]; do sleep 0.1; done
echo "check after slurmd $(systemctl show -P Result nhc-gpu.service)"
cat /opt/slurm/calls
rm /opt/faulty
systemctl start nhc-gpu.service
echo "check $(systemctl show -P Result nhc-gpu.service)"
mountpoint /opt/mounted
ls /opt/passed
cat /opt/slurm/calls
systemctl start nhc-gpu-monitor.service
echo "monitor $(systemctl show -P ActiveState nhc-gpu-monitor.service)"
old=$(systemctl show -P MainPID nhc-gpu-monitor.service)
kill -KILL "$old"
for i in $(seq 300); do
  [ "$(systemctl show -P MainPID nhc-gpu-monitor.service)" -gt "$old" ] && [ "$(systemctl show -P ActiveState nhc-gpu-monitor.service)" = active ] && echo "monitor again" && break
  sleep 0.1
done
systemctl stop nhc-gpu-monitor.service
echo "monitor $(systemctl show -P Result nhc-gpu-monitor.service)"
E
chmod 755 /opt/look
systemctl set-default multi-user.target
systemctl enable nhc-gpu-boot.service look.service
ln -s /etc/systemd/system/slurmd.service /etc/systemd/system/multi-user.target.wants/`)
	text, err := exec.Command("./boot.sh", s.low, filepath.Join(s.dir, "upper"), s.dir, filepath.Join(s.dir, "share")).CombinedOutput()
	out := string(text)
	looked, readErr := os.ReadFile(filepath.Join(s.dir, "share/looked"))
	if err != nil || readErr != nil {
		t.Fatalf("%v, %v\n%s", err, readErr, out)
	}
	want := "boot success slurmd active\nslurmd after the check\ncheck after slurmd exit-code\n" + drained + "\ncheck success\n/opt/mounted is a mountpoint\n/opt/passed\n" + drained + "\n" + resumed + "\n" +
		"monitor active\nmonitor again\nmonitor success\n"
	if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(string(looked), "\n")); diff != "" {
		t.Errorf("(-want +got):\n%s\n%s", diff, out)
	}
}
