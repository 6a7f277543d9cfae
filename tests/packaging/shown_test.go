package packaging_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// A node gets nhc-gpu, loses a GPU, and returns to service: shown.sh has the steps, go test -v prints
// its output.
func TestShown(t *testing.T) {
	tier.All(t)
	t.Parallel()
	need.Program(t, "gcc")
	k := makePackages(t)
	for release, name := range map[string]string{"bookworm": "Debian GNU/Linux 12", "noble": "Ubuntu 24.04"} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t, release+"-slurm", false)
			share := filepath.Join(s.dir, "share")
			if _, err := fakenvml.Place(filepath.Join(share, "nvml"), fakenvml.Scenario(fakenvml.H100, 8)); err != nil {
				t.Fatal(err)
			}
			if err := fakenvml.Write(filepath.Join(share, "node"), fakenvml.Files(fakenvml.H100, 8)); err != nil {
				t.Fatal(err)
			}
			run(t, exec.Command("cp", "shown.sh", "../cluster/slurm.conf", share))
			story, err := s.sh("bash /mnt/shown.sh " + s.share([]string{k.deb(t, k.dir, program)})[0])
			if err != nil || !strings.HasPrefix(story, "\n== "+name) || !strings.HasSuffix(story, "\n== All clear\n") {
				t.Fatalf("%v\n%s", err, story)
			}
			t.Log(story)
		})
	}
}
