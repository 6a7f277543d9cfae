package conf

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseTOML(t *testing.T) {
	t.Parallel()
	const text = `# [[check]]
[[check]]
name = "fs_mount_rw"
fs = ["/", "/home"]   # [[check]]
remount = false

  [[ check ]] # with everything
name = "check_hw_ib"
hosts = "{gpu[01-16]}"
rate = 400
port = """
[[check]]
\"""" # ends here
share = 0.5
list = [
  [[1, 2], [3]],
  [[4]]]
text = '''
[[check]]'''

["check".sub]
x = 'a"]]'
[['check']]
"name" = "hw_cpuinfo"
`
	want := []Entry{
		{Pos{"t.toml", 2}, "check_fs_mount_rw", "*", map[string]any{"fs": []any{"/", "/home"}, "remount": false}, Policy{}},
		{Pos{"t.toml", 7}, "check_hw_ib", "{gpu[01-16]}", map[string]any{
			"rate": int64(400), "port": "[[check]]\n\"", "share": 0.5, "text": "[[check]]",
			"list": []any{[]any{[]any{int64(1), int64(2)}, []any{int64(3)}}, []any{[]any{int64(4)}}},
			"sub":  map[string]any{"x": `a"]]`},
		}, Policy{}},
		{Pos{"t.toml", 23}, "check_hw_cpuinfo", "*", map[string]any{}, Policy{}},
	}
	c, err := ParseTOML("t.toml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, c.Checks); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	c, err = ParseTOML("t.toml", []byte(strings.ReplaceAll(text, "\n", "\r\n")))
	if err != nil || len(c.Checks) != 3 || c.Checks[2].Pos.Line != 23 {
		t.Errorf("with carriage returns: got %v, %v", c, err)
	}
	if c, err := ParseTOML("t.toml", nil); err != nil || c.Checks != nil {
		t.Errorf("empty file: got %v, %v", c, err)
	}
}

func TestParseTOMLErrors(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, data, want string }{
		{"syntax", "[[check]]\nname = \"x\"\nfs = /home\n", "t.toml:3: got \"/\", want text in quotes, a number, true, false or a list"},
		{"unknown keys, all at once", "timeout = 5\n\n[[check]]\nname = \"x\"\n[defaults]\na = 1\n[[checks]]\nname = \"y\"\n",
			"t.toml:7: unknown key checks: want [[check]]\nt.toml:5: unknown key defaults: want one of mode, config_errors, [[check]], [policy.NAME], [active], [output], [guard], [remedy.NAME], [healthcheck], [prolog], [epilog]\n" +
				"t.toml:1: unknown key timeout: want one of mode, config_errors, [[check]], [policy.NAME], [active], [output], [guard], [remedy.NAME], [healthcheck], [prolog], [epilog]"},
		{"a table", "\n[check]\nname = \"x\"\n", "t.toml:2: unknown key check: want [[check]]"},
		{"a list of inline tables", "check = [{name = \"x\"}]\n", "t.toml:1: unknown key check: want [[check]]"},
		{"names and hosts, all at once", "[[check]]\n[[check]]\nname = 5\n[[check]]\nname = \"x\"\nhosts = [\"a\"]\n[[check]]\nname = \"\"\n",
			"t.toml:1: no name, want name = \"...\"\nt.toml:2: name = 5: want text in quotes\n" +
				"t.toml:4: hosts = [\"a\"]: want text in quotes\nt.toml:7: no name, want name = \"...\""},
		{"key given twice", "[[check]]\nname = \"x\"\nname = \"y\"\n", `t.toml:3: the key "check.name" is given twice, want it once`},
		{"binary", "\x00", "t.toml: binary data, want TOML"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := ParseTOML("t.toml", []byte(tt.data))
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("got %v, %v\nwant error %s", got, err, tt.want)
			}
		})
	}
}

func TestDefault(t *testing.T) {
	t.Parallel()
	got, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	want := []Entry{
		{Pos{"default.toml", 3}, "check_fs_mount_rw", "*", map[string]any{"fs": "/"}, Policy{}},
		{Pos{"default.toml", 7}, "check_file_test", "*", map[string]any{"test": "dw", "files": []any{"/tmp"}}, Policy{}},
		{Pos{"default.toml", 12}, "check_hw_cpuinfo", "*", map[string]any{}, Policy{}},
		{Pos{"default.toml", 15}, "check_hw_eth", "*", map[string]any{"dev": "lo"}, Policy{}},
		{Pos{"default.toml", 21}, "check_hw_edac", "*", map[string]any{}, Policy{}},
	}
	line := 26
	for name := range strings.FieldsSeq("count driver recovery xid ecc remap mode vbios temp power clocks throttle pcie procs nvlink fabric") {
		params := map[string]any{}
		if name == "ecc" { // the line of remap covers the rows
			params["no_remap"] = true
		}
		want = append(want, Entry{Pos{"default.toml", line}, "check_gpu_" + name, "*", params, Policy{}})
		line += 3 + len(params)
	}
	line += 2
	for name := range strings.FieldsSeq("ib_ports ib_count ib_modules ib_firmware ib_gid ib_errors ib_link_flapping ib_pcie eth_link pcie pcie_aer nvme hw_topology") {
		want = append(want, Entry{Pos{"default.toml", line}, "check_" + name, "*", map[string]any{}, Policy{}})
		line += 3
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzParseTOML(f *testing.F) {
	for _, seed := range []string{"[[check]]\nname='x'\n", "[[check]]\nname=\"\"\"\n[[check]]\"\"\"\n", "a=[\n[[1]]]", "[[check.x]]"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseTOML("t", data)
		if err != nil && strings.Contains(err.Error(), "[[check]] lines for") {
			t.Fatal(err)
		}
		if err != nil {
			return
		}
		for _, e := range c.Checks {
			if e.Pos.Line < 1 || !strings.HasPrefix(e.Name, "check_") || e.Hosts == "" {
				t.Fatalf("%+v", e)
			}
		}
	})
}
