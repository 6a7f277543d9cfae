package worker

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/runtest"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

func TestFunctions(t *testing.T) {
	t.Parallel()
	const script = `#!/bin/bash
function check_a() {
check_b() { :; }
  function  check_c {
	check_d ()
function check_e
{
x=( 1 2 )
foo "$(bar)" ()
if (true); then :; fi
# function check_no() {
case $x in a) ;; esac
()
function
echo a() # not at the beginning
`
	want := []string{"check_a", "check_b", "check_c", "check_d", "check_e"}
	if diff := cmp.Diff(want, findFunctions([]byte(script))); diff != "" {
		t.Errorf("functions (-want +got):\n%s", diff)
	}
}

func FuzzFunctions(f *testing.F) {
	f.Add([]byte("function a() {\nb() (\n function \x00\n((\n)("))
	f.Fuzz(func(t *testing.T, script []byte) {
		for _, name := range findFunctions(script) {
			if name == "" {
				t.Errorf("findFunctions(%q) has a name without a letter", script)
			}
		}
	})
}

func kinds(scripts []wire.Script) (list []string) {
	for _, s := range scripts {
		kind := " site"
		switch {
		case s.Stock:
			kind = " stock"
		case s.Altered:
			kind = " altered"
		}
		list = append(list, filepath.Base(s.Path)+kind)
	}
	return list
}

// A file is LBNL NHC's by its name and its content; only the functions that it defines itself
// override those of an earlier script.
func TestListScripts(t *testing.T) {
	t.Parallel()
	dir := runtest.WriteScripts(t, map[string]string{
		"aaa.nhc":            runtest.ScriptText("check_hw_topology", "check_hw_eth", "check_net_dns", "check_net_socket", "check_fs_mount", "nhc_hw_gather_data", "mine"),
		"csc_nvidia_smi.nhc": "#!/bin/bash\nfunction check_nvsmi_healthmon() {\n}\n", // Azure's
		"lbnl_ps.nhc":        runtest.ScriptText("check_ps_daemon") + "# changed by the site\n",
		"renamed_hw.nhc":     runtest.ScriptText(runtest.TestFiles["lbnl_hw.nhc"]...),
		"zz.nhc":             runtest.ScriptText("check_hw_eth", "check_net_route"),
		".hidden.nhc":        "",
		"notes.txt":          "",
		"old.nhc.bak":        "",
	})
	for _, name := range []string{"lbnl_fs.nhc", "gone.nhc"} {
		_ = os.Remove(filepath.Join(dir, name))
		if err := os.Symlink("/nonexistent", filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	resp := ListScripts(dir, runtest.TestTable())
	want := []string{
		"aaa.nhc site", "common.nhc stock", "csc_nvidia_smi.nhc site", "lbnl_fs.nhc stock", "lbnl_hw.nhc stock", "lbnl_ps.nhc altered",
		"renamed_hw.nhc site", "ww_net.nhc stock", "zz.nhc site",
	}
	if diff := cmp.Diff(want, kinds(resp.Scripts)); diff != "" {
		t.Errorf("listScripts (-want +got):\n%s", diff)
	}
	over := slices.Sorted(maps.Keys(run.Overrides(resp.Scripts)))
	want = []string{"check_hw_cpuinfo", "check_hw_eth", "check_hw_topology", "check_net_dns", "check_net_route", "check_nvsmi_healthmon", "check_ps_daemon"}
	if diff := cmp.Diff(want, over); diff != "" {
		t.Errorf("Overrides (-want +got):\n%s", diff)
	}
	var dropped []string
	for _, d := range run.DroppedFunctions(resp.Scripts) {
		dropped = append(dropped, fmt.Sprintf("%s %s %s %v", d.Function, filepath.Base(d.From), filepath.Base(d.By.Path), d.By.Stock))
	}
	want = []string{
		"check_fs_mount aaa.nhc lbnl_fs.nhc true", "check_hw_eth aaa.nhc zz.nhc false", "check_net_socket aaa.nhc ww_net.nhc true",
		"nhc_hw_gather_data aaa.nhc renamed_hw.nhc false", "check_hw_eth renamed_hw.nhc zz.nhc false",
	}
	if diff := cmp.Diff(want, dropped); diff != "" {
		t.Errorf("DroppedFunctions (-want +got):\n%s", diff)
	}
}

// Without a script of the site no file is sourced.
func TestListScriptsOfLBNL(t *testing.T) {
	t.Parallel()
	for _, s := range ListScripts(runtest.WriteScripts(t, nil), runtest.TestTable()).Scripts {
		if !s.Stock || !slices.Equal(s.Functions, runtest.TestFiles[filepath.Base(s.Path)]) {
			t.Errorf("%s: stock %v, defines %v", s.Path, s.Stock, s.Functions)
		}
	}
}

func TestListScriptsOfNoDirectory(t *testing.T) {
	t.Parallel()
	if resp := ListScripts(filepath.Join(t.TempDir(), "none"), ""); resp.Err != "" || resp.Scripts != nil {
		t.Errorf("listScripts = %+v, want nothing", resp)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if resp := ListScripts(file, ""); resp.Err != "" || resp.Scripts != nil {
		t.Errorf("listScripts of a file = %+v, want nothing", resp)
	}
}
