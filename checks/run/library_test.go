package run

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// withLibrary runs a script in a bash that has read the library.
func withLibrary(t *testing.T, script string, environ ...string) string {
	t.Helper()
	cmd := exec.Command("bash", "-c", "dbg() { :; }\n"+library+libfacts+script)
	cmd.Env = append([]string{"PATH=/usr/bin:/bin"}, environ...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return string(out)
}

// The library computes MAX_SYS_UID as LBNL NHC itself, and as package probe.
func TestMaxSystemUIDOfLibrary(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../probe/testdata/max_sys_uid.txt")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var wants, texts []string
	for line := range strings.Lines(string(data)) {
		want, quoted, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if want == "#" {
			continue
		}
		text, err := strconv.Unquote(quoted)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(len(texts))), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		wants, texts = append(wants, want), append(texts, text)
	}
	got := strings.Fields(withLibrary(t, `
one() { LOGIN_DEFS_SRC=$1; unset MAX_SYS_UID; nhc_common_get_max_sys_uid; echo "$MAX_SYS_UID"; }
for ((i = 0; i < COUNT; i++)); do
    said="$(one "$DIR/$i" 2>/dev/null)"
    echo "${said:-error}"
done`, "DIR="+dir, "COUNT="+strconv.Itoa(len(texts))))
	if len(got) != len(wants) || len(got) < 72 {
		t.Fatalf("%d answers to %d files", len(got), len(wants))
	}
	for i, want := range wants {
		if got[i] != want {
			t.Errorf("MAX_SYS_UID of %q = %s, want %s", texts[i], got[i], want)
		}
	}
	for what, want := range map[string]string{
		"LOGIN_DEFS_SRC=/nonexistent; nhc_common_get_max_sys_uid; echo $MAX_SYS_UID $?":                   "99 1\n",
		"LOGIN_DEFS_SRC=/nonexistent MAX_SYS_UID=7; nhc_common_get_max_sys_uid; echo $MAX_SYS_UID $?":     "7 1\n",
		"LOGIN_DEFS_SRC=/dev/null MAX_SYS_UID=7; nhc_common_get_max_sys_uid; echo $MAX_SYS_UID $?":        "7 0\n",
		"LOGIN_DEFS_SRC=/proc/self/mem; nhc_common_get_max_sys_uid 2>/dev/null; echo $MAX_SYS_UID $?":     "99 0\n", // cannot be read
		"LOGIN_DEFS_SRC=/dev/fd/3; nhc_common_get_max_sys_uid 3<<<'UID_MIN 10\\00'; echo $MAX_SYS_UID":    "999\n",
		"LOGIN_DEFS_SRC=/dev/fd/3 IFS=; nhc_common_get_max_sys_uid 3<<<' UID_MIN 500'; echo $MAX_SYS_UID": "499\n",
	} {
		if got := withLibrary(t, what); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
}
