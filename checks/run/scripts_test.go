package run

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
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
	if diff := cmp.Diff(want, functions([]byte(script))); diff != "" {
		t.Errorf("functions (-want +got):\n%s", diff)
	}
}

func FuzzFunctions(f *testing.F) {
	f.Add([]byte("function a() {\nb() (\n function \x00\n((\n)("))
	f.Fuzz(func(t *testing.T, script []byte) {
		for _, name := range functions(script) {
			if name == "" {
				t.Errorf("functions(%q) has a name without a letter", script)
			}
		}
	})
}

func TestListScripts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"aaa.nhc":            "check_fs_mount() { :; }\ncheck_file_test() { :; }\n",
		"lbnl_fs.nhc":        "# LBNL NHC - Filesystem Checks\nfunction nhc_fs_x() {\n}\nfunction check_fs_mount() {\n}\n",
		"lbnl_ps.nhc":        "# NHC - Process Checks\nfunction check_ps_daemon() {\n}\nfunction check_ps_ours() {\n}\n",
		"csc_nvidia_smi.nhc": "#!/bin/bash\nfunction check_nvsmi_healthmon() {\n}\n",
		"zz.nhc":             "function check_ps_daemon() {\n}\nfunction check_ours() {\n}\n",
		".hidden.nhc":        "",
		"notes.txt":          "",
		"old.nhc.bak":        "",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"lbnl_hw.nhc", "gone.nhc"} {
		if err := os.Symlink("/nonexistent", filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	resp := listScripts(dir)
	var got []string
	for _, s := range resp.Scripts {
		kind := " site"
		if s.Stock {
			kind = " stock"
		}
		got = append(got, filepath.Base(s.Path)+kind)
	}
	want := []string{"aaa.nhc site", "csc_nvidia_smi.nhc site", "lbnl_fs.nhc stock", "lbnl_hw.nhc stock", "lbnl_ps.nhc site", "zz.nhc site"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("listScripts (-want +got):\n%s", diff)
	}
	over := slices.Sorted(maps.Keys(Overrides(resp.Scripts)))
	// Once the check is built in, csc_nvidia_smi.nhc of this site overrides it.
	over = slices.DeleteFunc(over, func(n string) bool { return n == "check_nvsmi_healthmon" })
	if diff := cmp.Diff([]string{"check_file_test", "check_ps_daemon"}, over); diff != "" {
		t.Errorf("Overrides (-want +got):\n%s", diff)
	}
}

func TestListScriptsOfNoDirectory(t *testing.T) {
	t.Parallel()
	if resp := listScripts(filepath.Join(t.TempDir(), "none")); resp.Err != "" || resp.Scripts != nil {
		t.Errorf("listScripts = %+v, want nothing", resp)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if resp := listScripts(file); resp.Err != "" || resp.Scripts != nil {
		t.Errorf("listScripts of a file = %+v, want nothing", resp)
	}
}
