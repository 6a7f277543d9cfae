package probe

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tree makes a node of files: a name that ends in a slash is a directory.
func tree(t testing.TB, files map[string]string) *Host {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if strings.HasSuffix(name, "/") {
			mkdir(t, path)
			continue
		}
		mkdir(t, filepath.Dir(path))
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return NewHost(root)
}

func mkdir(t testing.TB, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

// message is the text of an error, "" of none.
func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
