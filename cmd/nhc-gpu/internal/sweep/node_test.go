package sweep

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nhc-gpu/nhc-gpu/checks/session/sessiontest"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
)

func TestMain(m *testing.M) { sessiontest.Main(m) }

// A rank sets what nccl_env of nhc.toml has, or else that of nhc-active.toml. Where a file has an error no setting
// is known.
func TestRankOptions(t *testing.T) {
	const site = "[active]\nnccl_env = [\"NCCL_IB_HCA=mlx5\", \"NCCL_IB_GID_INDEX=3\"]\n"
	for name, tt := range map[string]struct {
		files map[string]string
		want  []string
		bad   string
	}{
		"no file":         {},
		"nhc.toml":        {files: map[string]string{"nhc.toml": site}, want: []string{"NCCL_IB_HCA=mlx5", "NCCL_IB_GID_INDEX=3"}},
		"nhc-active.toml": {files: map[string]string{"nhc.toml": "mode = \"observe\"\n", "nhc-active.toml": site}, want: []string{"NCCL_IB_HCA=mlx5", "NCCL_IB_GID_INDEX=3"}},
		"both":            {files: map[string]string{"nhc.toml": "[active]\nnccl_env = [\"NCCL_IB_TC=106\"]\n", "nhc-active.toml": site}, want: []string{"NCCL_IB_TC=106"}},
		"an error":        {files: map[string]string{"nhc.toml": "[active]\nnccl_env = [\"NCCL_ALGO=ring\"]\n"}, want: []string{"NCCL_ALGO=ring"}, bad: "want --algo"},
		"an error there":  {files: map[string]string{"nhc-active.toml": "x = 1\n"}, bad: "nhc-active.toml:1: unknown key x"},
	} {
		dir := t.TempDir()
		for file, text := range tt.files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		o := rankOptions("1", options.Assignment{Name: "CONFDIR", Value: dir}, options.Assignment{Name: "SYSCONFIGDIR", Value: dir})
		if diff := cmp.Diff(tt.want, o.NCCL.Env, cmpopts.EquateEmpty()); diff != "" || o.Platform == nil || o.Settings["CONFDIR"] != dir {
			t.Errorf("%s: settings %v (-want +got)\n%s", name, o.Settings["CONFDIR"], diff)
		}
		if bad := o.NCCL.Err != nil; os.Geteuid() == 0 && (bad != (tt.bad != "") || bad && !strings.Contains(o.NCCL.Err.Error(), tt.bad)) {
			t.Errorf("%s: error %v, want %q", name, o.NCCL.Err, tt.bad)
		}
	}
}
