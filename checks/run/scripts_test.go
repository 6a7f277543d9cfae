package run

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/run/runtest"
	"github.com/nhc-gpu/nhc-gpu/checks/run/worker"
)

// The text for bash restores the functions that a file of LBNL NHC defines.
func TestLoadWords(t *testing.T) {
	t.Parallel()
	dir := runtest.WriteScripts(t, map[string]string{"aaa.nhc": runtest.ScriptText("check_hw_eth", "check_hw_topology", "array_push", "mcheck_glob", "nhc_hw_gather_data"), "zz.nhc": runtest.ScriptText("mcheck_glob")})
	words := buildLoadArgs(worker.ListScripts(dir, runtest.TestTable()).Scripts)
	script := "check_hw_cpuinfo() { :; }\n"
	for pair := range slices.Chunk(words, 2) {
		if pair[0] == "site" {
			script += ". " + pair[1] + "\n"
		} else {
			script += pair[1]
		}
	}
	script += "for n in check_hw_eth check_hw_cpuinfo check_hw_topology array_push mcheck_glob nhc_hw_gather_data; do\n" +
		`case "$(declare -f $n)" in *99*) echo $n site ;; "") echo $n none ;; *) echo $n ours ;; esac; done`
	want := "check_hw_eth ours\ncheck_hw_cpuinfo ours\ncheck_hw_topology site\narray_push ours\nmcheck_glob site\nnhc_hw_gather_data ours\n"
	if diff := cmp.Diff(want, withLibrary(t, script)); diff != "" {
		t.Errorf("after loading (-want +got):\n%s", diff)
	}
}
