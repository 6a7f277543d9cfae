package fakenvml_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

// Faults of NVLinks and of the fabric cause findings with the correct texts.
func TestLinkFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, scenario, line, want string }{
		{"link down", "3 nvmlDeviceGetNvLinkState 7 = 0", "check_gpu_nvlink", "check_gpu_nvlink:  gpu3 0000:13:00.0: NVLink 7 is down, want 18 up, got 17"},
		{"link down, AzureHPC's name", "3 nvmlDeviceGetNvLinkState 7 = 0", "check_nvlink_status", "check_nvlink_status:  gpu3 0000:13:00.0: NVLink 7 is down, want 18 up, got 17"},
		{"slow link", "3 field 164 7 = 13281", "check_gpu_nvlink -b 26562", "check_gpu_nvlink:  gpu3 0000:13:00.0: NVLink 7 is slow, want at least 26562 MB/s, got 13281 MB/s"},
		{"no peer", "3 nvmlDeviceGetP2PStatus * 2 = 5\n* nvmlDeviceGetP2PStatus 3 2 = 5", "check_gpu_nvlink",
			"check_gpu_nvlink:  gpu3 0000:13:00.0: NVLink traffic with 7 of 7 GPUs, want ok, got NVLink: not supported"},
		{"no peer, and one that cannot be asked for", "5 nvmlDeviceGetP2PStatus * 2 = 5\n* nvmlDeviceGetP2PStatus 5 2 = 5\n* nvmlDeviceGetP2PStatus 3 2 error 999", "check_gpu_nvlink",
			"check_gpu_nvlink:  gpu5 0000:15:00.0: NVLink traffic with 7 of 7 GPUs, want ok, got NVLink: not supported"},
		{"fabric without resources", "3 nvmlDeviceGetGpuFabricInfo = 3 23 0 0 0 0 0", "check_gpu_fabric",
			"check_gpu_fabric:  gpu3 0000:13:00.0: state of the fabric is completed, but its status, want success, got insufficient resources"},
		{"fabric of an older form", "- fabricVersions = 2\n3 nvmlDeviceGetGpuFabricInfo = 3 0 0 0 0 0xa9 0", "check_gpu_fabric",
			"check_gpu_fabric:  gpu3 0000:13:00.0: health of the fabric: degraded bandwidth"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, fakenvml.H100, 8, strings.Split(c.scenario, "\n"))
			if out, _ := n.run(t, "* || "+c.line+"\n"); !strings.Contains(out, ":  "+c.want+"\n") {
				t.Errorf("want %q, got\n%s", c.want, out)
			}
		})
	}
}

// Twelve of eighteen links are correct on an H100 NVL, and links of GPUs with MIG on are ignored.
func TestLinksByDesign(t *testing.T) {
	t.Parallel()
	for model, lines := range map[fakenvml.Model][]string{
		fakenvml.H100NVL: nil, fakenvml.GB200: nil, fakenvml.H100: {"* nvmlDeviceGetMigMode = 1 1", "3 nvmlDeviceGetNvLinkState * = 0"},
	} {
		n := newNode(t, model, 4, lines)
		if out, _ := n.run(t, "* || check_gpu_nvlink\n* || check_gpu_fabric\n", "-a"); out != "" {
			t.Errorf("%s:\n%s", model, out)
		}
	}
}

// A hang in the fields of one link does not affect the other lane's results and the earlier checks.
func TestLinkHangs(t *testing.T) {
	t.Parallel()
	n := newNode(t, fakenvml.B200, 8, []string{"3 field 215 7 hang", "2 nvmlDeviceGetPersistenceMode = 0"})
	out, took := n.run(t, "* || check_gpu_persistence -f\n* || check_gpu_nvlink\n* || check_gpu_fabric\n* || check_file_test -f /other/lane\n", "-a", "-t", "5")
	for _, want := range []string{
		"check_gpu_nvlink:  gpu3 0000:13:00.0: hung (in nvmlDeviceGetFieldValues(3): process ", "check_gpu_persistence:  gpu2 0000:12:00.0: ", "check_file_test:  -f /other/lane returned 1",
	} {
		if !strings.Contains(out, want) || took > 12*time.Second {
			t.Errorf("after %v, want %q, got\n%s", took, want, out)
		}
	}
}
