package active

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

// AzureHPC's lines, including older forms, mean the same as our own form.
func TestAzureWords(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ line, same []string }{
		{checktest.Of("check_ib_bw_gdr", "380", "nd96isr_v5"), checktest.Of("check_ib_bw_gdr", "380")},
		{checktest.Of("check_ib_bw_gdr", "185.0", "ndv4", "3"), checktest.Of("check_ib_bw_gdr", "185")},
		{checktest.Of("check_ib_bw_non_gdr", "78", "65536", "nd40rs_v2"), checktest.Of("check_ib_bw_non_gdr", "-s", "65536", "78")},
		{checktest.Of("check_ib_bw_loop_gdr", "175.0", "nd96asr_v4"), checktest.Of("check_ib_bw_loop_gdr", "175")},
		{checktest.Of("check_gpu_bw", "12", "38", "120"), checktest.Of("check_gpu_bw", "12", "38")},
		{checktest.Of("check_nccl_allreduce", "460.0", "1", "/opt/microsoft/ndv5-topo.xml", "16G"), checktest.Of("check_nccl_allreduce", "460", "1", "16G", "/opt/microsoft/ndv5-topo.xml")},
	} {
		got, want := checktest.Bound(t, c.line), checktest.Bound(t, c.same)
		for _, check := range []checks.Check{got, want} {
			switch c := check.(type) {
			case *ibBW:
				c.Surplus = nil
			case *gpuBandwidth:
				c.Surplus = nil
			}
		}
		if diff := cmp.Diff(want, got, cmp.Exporter(func(reflect.Type) bool { return true })); diff != "" {
			t.Errorf("%q is not %q (-want +got):\n%s", c.line, c.same, diff)
		}
	}
	for _, line := range [][]string{
		checktest.Of("check_ib_bw_gdr", "380", "8Mx"), checktest.Of("check_ib_bw", "380", "8M", "7"), checktest.Of("check_gpu_bandwidth", "12", "38", "120"), checktest.Of("check_gpu_bw", "12", "38", "120", "4"),
	} {
		info, _ := checks.Lookup(line[0])
		if err := checks.Bind(info.New(), line[1:]); err == nil {
			t.Errorf("%q binds", line)
		}
	}
}
