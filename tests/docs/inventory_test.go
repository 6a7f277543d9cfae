package docs

import (
	"os"
	"testing"

	"go.yaml.in/yaml/v3"
)

// docs/rollout.md runs the play first to install in observe mode: no node of the shipped inventory may
// enforce then.
func TestInventory(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(root + "/conf/ansible/inventory.yml")
	if err != nil {
		t.Fatal(err)
	}
	var inventory struct {
		GPU struct {
			Children map[string]struct {
				Hosts map[string]any
				Vars  map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(data, &inventory); err != nil {
		t.Fatal(err)
	}
	groups := inventory.GPU.Children
	if len(groups["canary"].Hosts) > 0 || groups["canary"].Vars["nhc_gpu_mode"] != "enforce" || len(groups["observed"].Hosts) == 0 || len(groups["observed"].Vars) > 0 {
		t.Errorf("%+v, want a group canary that enforces and has no hosts, and all hosts in the group observed", groups)
	}
}
