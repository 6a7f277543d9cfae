package lbnl

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// onTool returns a scenario with one fake program, a shell script.
func onTool(name, program, script string, want ...checks.Finding) checktest.Scenario {
	return checktest.Scenario{
		Name: name, Want: want, Tools: []string{"sh", "cat", "head"},
		Files: map[string]string{"bin/" + program: "#!/bin/sh\n" + script + "\n"},
	}
}

// byStatus returns a failure by the exit status of a tool.
func byStatus(code, tool, got, message string, remedy checks.Remedy) checks.Finding {
	return checks.Finding{
		Code: code, Severity: checks.Fail, Device: checks.Device{Kind: "command", Name: tool}, Message: message, Want: "0", Got: got, Remedy: remedy}
}

// TestToolsRunOnce checks that a run starts each tool once for all lines. Exceptions, as in
// LBNL NHC: mcelog, and a dmidecode that prints nothing, are started for every line. The keys
// are tool, number of calls and output.
func TestToolsRunOnce(t *testing.T) {
	t.Parallel()
	for tool, lines := range map[string][]string{
		"nvidia-smi 1":       {"check_nvsmi_healthmon", "check_nvsmi_healthmon"},
		"nvidia-healthmon 1": {"check_nv_healthmon", "check_nv_healthmon", "check_nv_healthmon"},
		"dmidecode 1 text":   {"check_dmi_data_match x", "check_dmi_raw_data_match x", "check_dmi_data_match -t 17 x"},
		"dmidecode 2":        {"check_dmi_data_match x", "check_dmi_raw_data_match x"},
		"mcelog 2":           {"check_hw_mcelog", "check_hw_mcelog"},
		"mdiag 2":            {"check_moab_rm", "check_moab_sched"},
	} {
		t.Run(tool, func(t *testing.T) {
			t.Parallel()
			name, rest, _ := strings.Cut(tool, " ")
			times, output, _ := strings.Cut(rest, " ")
			s := onTool("", name, "echo >> {root}/calls; printf '"+output+"'")
			root := s.Build(t)
			env := &checks.Env{Host: probe.NewHost(root)}
			for _, line := range lines {
				words := strings.Fields(line)
				info, _ := checks.Lookup(words[0])
				c := info.New()
				if err := checks.Bind(c, words[1:]); err != nil {
					t.Fatal(err)
				}
				c.Run(t.Context(), env)
			}
			calls, err := os.ReadFile(filepath.Join(root, "calls"))
			if diff := cmp.Diff(map[string]int{"1": 1, "2": 2}[times], len(calls)); err != nil || diff != "" {
				t.Errorf("%s was run %d times, want %s (%v)", name, len(calls), times, err)
			}
		})
	}
}
