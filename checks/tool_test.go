package checks

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

func TestSetting(t *testing.T) {
	t.Parallel()
	env := &Env{Host: probe.NewHost("/"), Vars: map[string]string{"SET": "vars", "EMPTY": ""}}
	env.Host.SetEnviron([]string{"SET=environment", "EMPTY=environment", "OUTER=environment", "BLANK="})
	for name, want := range map[string]string{"SET": "vars", "EMPTY": "", "OUTER": "environment", "BLANK": "preset", "NONE": "preset"} {
		if got := env.Setting(name, "preset"); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}
