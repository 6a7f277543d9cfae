package slurm

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Config is slurm.conf as slurmctld has it, by key. From 24.11 on, a key with several values has
// them as "Prolog[0]", "Prolog[1]".
type Config map[string]string

// AskConfig asks slurmctld for its configuration: one call.
func AskConfig(ctx context.Context, c *Controller) (Config, error) {
	argv, err := c.Settings.configArgv()
	if err != nil {
		return nil, fmt.Errorf("read the configuration of Slurm: %w", err)
	}
	out, err := c.call(ctx, argv)
	if err != nil {
		return nil, fmt.Errorf("read the configuration of Slurm: %w", err)
	}
	conf, err := ParseConfig(out.Stdout)
	if err != nil {
		return nil, fmt.Errorf("read the configuration of Slurm: %w", err)
	}
	return conf, nil
}

// ParseConfig parses the output of scontrol show config: a heading, lines of "Key = value", and
// further sections (of MPI, of cgroups), whose keys it ignores.
func ParseConfig(out []byte) (Config, error) {
	conf := Config{}
	for line := range strings.Lines(string(out)) {
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			if len(conf) > 0 {
				break
			}
			continue
		}
		conf[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	if conf["SLURM_VERSION"] == "" {
		return nil, fmt.Errorf("parse %q: want SLURM_VERSION", cut(printable(firstLine(out)), 80))
	}
	return conf, nil
}

// Value returns the value of a key; "" for each of Slurm's words for no value.
func (c Config) Value(key string) string {
	switch value := c[key]; value {
	case "(null)", "(none)", "N/A":
		return ""
	default:
		return value
	}
}

// Values returns all values of a key that can have several.
func (c Config) Values(key string) (all []string) {
	if value := c.Value(key); value != "" {
		return []string{value}
	}
	for i := 0; ; i++ {
		value := c.Value(fmt.Sprintf("%s[%d]", key, i))
		if value == "" {
			return all
		}
		all = append(all, value)
	}
}

// Has reports whether a list of words, with or without values, contains a word.
func (c Config) Has(key, word string) bool {
	for w := range strings.SplitSeq(c.Value(key), ",") {
		name, _, _ := strings.Cut(w, "=")
		if strings.EqualFold(strings.TrimSpace(name), word) {
			return true
		}
	}
	return false
}

// forever is longer than any limit in Slurm.
const forever = time.Duration(1<<63 - 1)

var errNoSeconds = errors.New("want seconds")

// Seconds parses a number of seconds: "10 sec", or "10". It returns forever for each of
// Slurm's forms of no limit: several words and the largest numbers of 16 and 32 bits. ok is false if the key is
// not set.
func (c Config) Seconds(key string) (d time.Duration, ok bool, err error) {
	value := c.Value(key)
	if value == "" {
		return 0, false, nil
	}
	number, unit, _ := strings.Cut(value, " ")
	switch strings.ToUpper(number) {
	case "INFINITE", "UNLIMITED", "65534", "65535", "4294967294", "4294967295":
		return forever, true, nil
	}
	n, err := strconv.ParseUint(number, 10, 31)
	if err != nil || unit != "" && unit != "sec" {
		return 0, false, fmt.Errorf("%s = %s: %w", key, cut(printable(value), 40), errNoSeconds)
	}
	return time.Duration(n) * time.Second, true, nil
}

// AtLeast reports whether Slurm is of a release or newer: "26.05".
func (c Config) AtLeast(release string) bool {
	return c.Value("SLURM_VERSION") >= release // two digits, a dot, two digits
}

// Programs returns the programs that a key names; they can be shell patterns. A relative path
// is below the directory of slurm.conf.
func (c Config) Programs(key string) []string {
	all := c.Values(key)
	for i, path := range all {
		if !filepath.IsAbs(path) {
			all[i] = filepath.Join(filepath.Dir(c.Value("SLURM_CONF")), path)
		}
	}
	return all
}
