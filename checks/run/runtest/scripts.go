// Package runtest has helpers that the tests of checks/run and its worker share.
package runtest

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// TestFiles are the files of a small LBNL NHC for these tests, with the functions that each
// defines.
var TestFiles = map[string][]string{
	"common.nhc":  {"array_push", "mcheck_glob", "nhc_common_get_max_sys_uid"},
	"lbnl_fs.nhc": {"nhc_fs_x", "check_fs_mount"},
	"lbnl_hw.nhc": {"nhc_hw_gather_data", "check_hw_cpuinfo", "check_hw_eth"},
	"lbnl_ps.nhc": {"check_ps_daemon"},
	"ww_net.nhc":  {"check_net_socket"},
}

// ScriptText returns a script with functions that fail if they are called.
func ScriptText(functions ...string) string {
	var text strings.Builder
	text.WriteString("# LBNL NHC - a file\n")
	for _, name := range functions {
		text.WriteString("function " + name + "() {\n    echo \"the script's $FUNCNAME\"\n    return 99\n}\n")
	}
	return text.String()
}

// TestTable returns the table of those files.
func TestTable() wire.FileTable {
	var b strings.Builder
	b.WriteString("# a comment\n")
	for name, functions := range TestFiles {
		fmt.Fprintf(&b, "%x %s 9.9 %s\n", sha256.Sum256([]byte(ScriptText(functions...))), name, strings.Join(functions, " "))
	}
	return wire.FileTable(b.String())
}

// WriteScripts creates a directory with the scripts of [TestFiles] and others.
func WriteScripts(t *testing.T, others map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, functions := range TestFiles {
		write(name, ScriptText(functions...))
	}
	for name, text := range others {
		write(name, text)
	}
	return dir
}
