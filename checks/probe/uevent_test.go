package probe

import (
	"strings"
	"testing"
)

func TestRemovedDevice(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		"remove@/devices/pci0000:00/0000:00:01.0/0000:c1:00.0|ACTION=remove|DEVPATH=/x|SUBSYSTEM=pci|SEQNUM=1": "/devices/pci0000:00/0000:00:01.0/0000:c1:00.0",
		"remove@/devices/x/infiniband/mlx5_0|ACTION=remove|SUBSYSTEM=infiniband":                               "/devices/x/infiniband/mlx5_0",
		"remove@/devices/virtual/net/veth0|ACTION=remove|SUBSYSTEM=net":                                        "",
		"add@/devices/pci0000:00/0000:c1:00.0|ACTION=add|SUBSYSTEM=pci":                                        "",
		"remove@/devices/virtual/block/dm-3|ACTION=remove|SUBSYSTEM=block":                                     "",
		"remove@/devices/virtual/block/loop0|ACTION=remove|SUBSYSTEM=block":                                    "",
		"remove@/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1|ACTION=remove|SUBSYSTEM=block":            "/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1",
		"remove@/devices/x": "", "": "", "|||": "", "libudev|\xfe\xed\xca\xfe|SUBSYSTEM=pci": "",
	} {
		if got := removedDevice([]byte(strings.ReplaceAll(message, "|", "\x00"))); got != want {
			t.Errorf("%q: %q, want %q", message, got, want)
		}
	}
}

// The kernel's messages can be received here, and none is about a removed device.
func TestWatchDevices(t *testing.T) {
	t.Parallel()
	w, err := WatchDevices()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, _, err := w.Wait(0); err != nil {
		t.Error(err)
	}
}
