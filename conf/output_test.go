package conf

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestOutput(t *testing.T) {
	t.Parallel()
	c, err := ParseTOML("t.toml", []byte(`
[output]
jsonl = "/var/log/nhc-gpu//nhc.jsonl"
jsonl_max = 65536
textfile = "/var/lib/node_exporter/nhc.prom"
autopilot = true
syslog = true
syslog_id = "nhc@64512.1"
journald = true
command = ["/usr/local/sbin/ticket", "--queue", "gpu"]
command_on = "fail"
command_timeout = 2.5
privacy = true
`))
	want := Output{
		JSONL: "/var/log/nhc-gpu/nhc.jsonl", JSONLMax: 65536, Textfile: "/var/lib/node_exporter/nhc.prom", Autopilot: true, Syslog: true, SyslogID: "nhc@64512.1",
		Journald: true, Command: []string{"/usr/local/sbin/ticket", "--queue", "gpu"}, CommandOn: OnFail, CommandTimeout: 2500 * time.Millisecond, Privacy: true,
	}
	if err != nil || !cmp.Equal(c.Outputs(), want) {
		t.Errorf("%v\n%s", err, cmp.Diff(want, c.Outputs()))
	}
	var none *Config
	if o := none.Outputs(); !cmp.Equal(o, defaultOutput) {
		t.Errorf("no file: %+v", o)
	}
	if c, err := ParseTOML("t.toml", []byte("[output]\nsyslog = true\n")); err != nil || c.Output.CommandOn != OnChange || c.Output.JSONLMax != 16<<20 || c.Output.CommandTimeout != 10*time.Second {
		t.Errorf("defaults: %+v, %v", c.Output, err)
	}
}

func TestOutputErrors(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`jsonl = "nhc.jsonl"`:              `output.jsonl: "nhc.jsonl": want the absolute path of a file`,
		`jsonl = "/var/log/"`:              `output.jsonl: "/var/log/": want the absolute path of a file`,
		`jsonl = true`:                     `output.jsonl: true: want the absolute path of a file`,
		`jsonl_max = 10`:                   `output.jsonl_max: 10: want a whole number of bytes, 65536 to 1073741824`,
		`jsonl_max = "1M"`:                 `output.jsonl_max: "1M": want a whole number of bytes`,
		`textfile = "/var/lib/nhc.txt"`:    `output.textfile: "/var/lib/nhc.txt": want the absolute path of a file whose name ends in .prom`,
		`autopilot = "yes"`:                `output.autopilot: "yes": want true or false`,
		`syslog_id = "nhc"`:                `output.syslog_id: "nhc": want NAME@NUMBER`,
		`syslog_id = "n hc@1"`:             `output.syslog_id: "n hc@1": want NAME@NUMBER`,
		`command = "/bin/mail root"`:       `output.command: "/bin/mail root": want a list: the absolute path of a program, and its arguments`,
		`command = []`:                     `output.command: []: want a list`,
		`command = ["mail", "root"]`:       `output.command: ["mail", "root"]: want a list`,
		`command = ["/bin/mail", 3]`:       `output.command: ["/bin/mail", 3]: want a list`,
		`command_on = "failure"`:           `output.command_on: "failure": want`,
		`command_timeout = 0`:              `output.command_timeout: 0: want seconds, 1 to`,
		`json = "/var/log/nhc-gpu/nhc.js"`: `unknown key output.json: want`,
	} {
		c, err := ParseTOML("t.toml", []byte("[output]\n"+text+"\n"))
		if err == nil || !strings.HasPrefix(err.Error(), "t.toml:2: "+want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
		if c == nil || !cmp.Equal(c.Output, defaultOutput) {
			t.Errorf("%s: an output in spite of the error", text)
		}
	}
}
