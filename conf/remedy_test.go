package conf

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestRemedies(t *testing.T) {
	t.Parallel()
	c, err := ParseTOML("t.toml", []byte(`
[remedy.reset]
do = "reset-gpu"
services = ["nvidia-dcgm"]
[remedy."boot it"]
do = "reboot-node"
codes = ["gpu.xid.79"]
platforms = ["hgx-h100"]
verify = ["check_gpu_gemm -t 30"]
timeout = "45m"
attempts = 1
window = "24h"
`))
	const week = 7 * 24 * time.Hour
	want := []Remedy{
		{Name: "boot it", Pos: Pos{"t.toml", 5}, Do: RebootNode, Codes: []string{"gpu.xid.79"}, Platforms: []string{"hgx-h100"}, Verify: []string{"check_gpu_gemm -t 30"}, Timeout: 45 * time.Minute, Attempts: 1, Window: 24 * time.Hour},
		{Name: "reset", Pos: Pos{"t.toml", 2}, Do: ResetGPU, Services: []string{"nvidia-dcgm"}, Timeout: 5 * time.Minute, Attempts: 2, Window: week},
	}
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, c.Remedies); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for text, want := range map[string]string{
		"":                   `remedy.x: no do: want`,
		`do = "reboot"`:      `t.toml:2: remedy.x.do: "reboot": want`,
		`do = "restart-app"`: `remedy.x: restart-app requires codes`,
		"do = \"restart-app\"\ncodes = [\"a.b\"]":                   `remedy.x: restart-app requires services or command`,
		`do = "power-cycle"`:                                        `remedy.x: power-cycle requires command`,
		"do = \"reboot-node\"\nservices = [\"a\"]":                  `remedy.x: services: reboot-node stops no service`,
		"do = \"reset-gpu\"\nservices = [\"nvidia-fabricmanager\"]": `a Fabric Manager that is stopped for a reset`,
		"do = \"reset-gpu\"\nservices = [\"-x\"]":                   `remedy.x.services: ["-x"]: want a list of texts`,
		"do = \"reset-gpu\"\ncodes = [\"gpu\"]":                     `remedy.x.codes: ["gpu"]: want a list of texts`,
		"do = \"reset-gpu\"\ncommand = [\"ipmi\"]":                  `want the absolute path of a program first`,
		"do = \"reset-gpu\"\ntimeout = \"3h\"":                      `want a duration from 1s to 2h0m0s`,
		"do = \"reset-gpu\"\nattempts = 0":                          `remedy.x.attempts: 0: want a whole number, 1 to 100`,
		"do = \"reset-gpu\"\nretries = 1":                           `t.toml:3: unknown key remedy.x.retries: want`,
	} {
		c, err := ParseTOML("t.toml", []byte("[remedy.x]\n"+text+"\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
		if c != nil && len(c.Remedies) > 0 {
			t.Errorf("%s: %+v is used", text, c.Remedies)
		}
	}
	if _, err := ParseTOML("t.toml", []byte("[remedy]\ndo = \"reset-gpu\"\n")); err == nil || !strings.Contains(err.Error(), "key remedy.do: want [remedy.NAME]") {
		t.Errorf("%v, want an error of [remedy] without a name", err)
	}
}
