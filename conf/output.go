package conf

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/nhc-gpu/nhc-gpu/conf/tomltext"
)

// Output holds the outputs of the event that each run makes, [output] of nhc.toml. The zero value has
// none; the history of the node is kept in any case.
type Output struct {
	JSONL          string        // file that gets one line of JSON for each run
	JSONLMax       int64         // its largest size, bytes; then it becomes FILE.1
	Textfile       string        // file of metrics for node_exporter
	Autopilot      bool          // it also has the gauge of IBM Autopilot
	Syslog         bool          // RFC 5424 with structured data
	SyslogID       string        // SD-ID of that data
	Journald       bool          // one entry with fields
	Command        []string      // gets the event on its standard input
	CommandOn      string        // always, change or fail
	CommandTimeout time.Duration // time limit of the command
	Privacy        bool          // no name of a user, a process or a file in any output
}

// Values of command_on.
const (
	Always   = "always"
	OnChange = "change"
	OnFail   = "fail"
)

// defaultOutput holds the defaults of the settings of outputs. 32473 is the private enterprise number
// that RFC 5612 reserves for documentation; a site has its own.
var defaultOutput = Output{JSONLMax: 16 << 20, SyslogID: "nhc@32473", CommandOn: OnChange, CommandTimeout: 10 * time.Second}

// Outputs returns the outputs; without a file there are none.
func (c *Config) Outputs() Output {
	if c == nil {
		return defaultOutput
	}
	return c.Output
}

// output reads [output].
func (d *decoder) output(p toml.Primitive) Output {
	o := defaultOutput
	d.table("output", p, map[string]func(any) error{
		"jsonl": absolute(&o.JSONL, ""), "textfile": absolute(&o.Textfile, ".prom"),
		"jsonl_max": func(v any) error {
			n, ok := v.(int64)
			if !ok || n < 64<<10 || n > 1<<30 {
				return fmt.Errorf("%s: want a whole number of bytes, %d to %d", tomltext.Value(v), 64<<10, 1<<30)
			}
			o.JSONLMax = n
			return nil
		},
		"autopilot": onOff(&o.Autopilot), "syslog": onOff(&o.Syslog), "journald": onOff(&o.Journald), "privacy": onOff(&o.Privacy),
		"syslog_id": func(v any) error {
			id, _ := v.(string)
			name, number, ok := strings.Cut(id, "@")
			if !ok || name == "" || len(id) > 32 || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`=]"`, r) }) || strings.Trim(number, "0123456789.") != "" || number == "" {
				return fmt.Errorf("%s: want NAME@NUMBER, the private enterprise number of the site", tomltext.Value(v))
			}
			o.SyslogID = id
			return nil
		},
		"command": func(v any) error {
			words, ok := texts(v)
			if !ok || len(words) == 0 || !filepath.IsAbs(words[0]) {
				return fmt.Errorf("%s: want a list: the absolute path of a program, and its arguments", tomltext.Value(v))
			}
			o.Command = words
			return nil
		},
		"command_on": word(map[string]func(){
			Always: func() { o.CommandOn = Always }, OnChange: func() { o.CommandOn = OnChange }, OnFail: func() { o.CommandOn = OnFail },
		}),
		"command_timeout": seconds(&o.CommandTimeout, 1),
	})
	return o
}

// onOff returns a function that reads true or false.
func onOff(to *bool) func(any) error {
	return func(v any) error {
		b, ok := v.(bool)
		if !ok {
			return fmt.Errorf("%s: want true or false", tomltext.Value(v))
		}
		*to = b
		return nil
	}
}

// absolute returns a function that reads the absolute path of a file whose name ends in suffix.
func absolute(to *string, suffix string) func(any) error {
	return func(v any) error {
		path, _ := v.(string)
		if !filepath.IsAbs(path) || strings.HasSuffix(path, "/") || !strings.HasSuffix(path, suffix) {
			want := "the absolute path of a file"
			if suffix != "" {
				want += " whose name ends in " + suffix
			}
			return fmt.Errorf("%s: want %s", tomltext.Value(v), want)
		}
		*to = filepath.Clean(path)
		return nil
	}
}

// texts returns a list of strings.
func texts(v any) (words []string, ok bool) {
	list, ok := v.([]any)
	for _, item := range list {
		word, isText := item.(string)
		words, ok = append(words, word), ok && isText && !slices.Contains([]rune(word), 0)
	}
	return words, ok
}
