package conf

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/nhc-gpu/nhc-gpu/conf/spell"
	"github.com/nhc-gpu/nhc-gpu/conf/tomltext"
)

// Config is the content of nhc.toml: checks, their policies, and how long a run
// can take.
type Config struct {
	Checks   []Entry
	Roles    map[string]Role   // by context: [prolog]; a context without a table has its default
	Policies map[string]Policy // by class, check or code, [policy.gpu]: "gpu", "check_gpu_pcie", "gpu.xid", "gpu.xid.79"
	Places   map[string]Pos    // positions of the policies

	Chosen map[string]string // settings by their names: mode is "MODE", config_errors "CONFIG_ERRORS"

	Output Output // where each run writes its event
	Guard  *Guard // how many nodes may be drained for one fault; nil: the default

	Remedies []Remedy // what nhc-gpu may repair by itself

	NCCLEnv      []string // NAME=VALUE that tests of NCCL set, [active] nccl_env
	NCCLEnvPlace Pos
}

// The contexts of a run: the program that started it.
const (
	HealthCheck = "healthcheck"
	Prolog      = "prolog"
	Epilog      = "epilog"
	Manual      = "manual"
	Monitor     = "monitor"
)

var contexts = []string{HealthCheck, Prolog, Epilog, Manual, Monitor}

// Role holds the settings of a run that a program starts.
type Role struct {
	Budget time.Duration // time limit of the whole run; 0: not set
	Exit   bool          // mark = "exit": only the exit status reports a failure, without a Slurm command
	End    bool          // leftovers = "end": kill the processes of the ended job
	Grace  time.Duration // how long a job's processes can take to end on their own
}

// Default budgets, and the grace of an epilog.
var defaultRoles = map[string]Role{
	HealthCheck: {},
	Prolog:      {Budget: 10 * time.Second},
	Epilog:      {Budget: 30 * time.Second, Grace: 3 * time.Second},
}

// Role returns the settings of a run in a context. A run after an event has those of a health check.
func (c *Config) Role(context string) Role {
	if context == Monitor {
		context = HealthCheck
	}
	if c != nil {
		if r, ok := c.Roles[context]; ok {
			return r
		}
	}
	return defaultRoles[context]
}

// ParseTOML parses nhc.toml: mode, config_errors, [[check]] tables, [policy.NAME], [active], [output],
// [guard], [remedy.NAME], [healthcheck], [prolog] and [epilog]. Any other key is an error. It returns
// all errors, each with its line, together with the valid part of the file.
func ParseTOML(file string, data []byte) (*Config, error) {
	if err := usable(file, data, "TOML"); err != nil {
		return nil, err
	}
	var root map[string]toml.Primitive
	md, err := toml.Decode(string(data), &root)
	if err != nil {
		return nil, tomltext.Place(file, err)
	}
	d := &decoder{file: file, md: md}
	c := &Config{Output: defaultOutput}
	for _, key := range slices.Sorted(maps.Keys(root)) {
		kind := md.Type(key)
		switch {
		case key == "check" && kind == "ArrayHash":
			c.Checks = d.checkTables(string(data), root[key])
		case key == "policy" && (kind == "Hash" || kind == ""): // "": only [policy.NAME] is written
			c.Policies, c.Places = d.policies(root[key])
		case key == "active" && kind == "Hash":
			c.NCCLEnv, c.NCCLEnvPlace = d.active(root[key])
		case key == "output" && kind == "Hash":
			c.Output = d.output(root[key])
		case key == "remedy" && (kind == "Hash" || kind == ""):
			c.Remedies = readRemedies(d, root[key])
		case key == "guard" && kind == "Hash":
			c.Guard = readGuard(d, root[key])
		case hasRole(key) && kind == "Hash":
			if c.Roles == nil {
				c.Roles = map[string]Role{}
			}
			c.Roles[key] = d.role(key, root[key])
		case key == strings.ToLower(key) && slices.Contains(Chosen, strings.ToUpper(key)):
			c.choose(d, key, root[key])
		default:
			d.value(root[key], func(any) error {
				return fmt.Errorf("unknown key %s: want %s", key, spell.OneOf(key, keys))
			})
		}
	}
	return c, errors.Join(d.errs...)
}

// choose sets a setting that accepts only a few values.
func (c *Config) choose(d *decoder, key string, p toml.Primitive) {
	name := strings.ToUpper(key)
	d.value(p, func(v any) error {
		text, ok := v.(string)
		if !ok || WrongChoice(name, text) != nil {
			return fmt.Errorf("%s = %s: want %q or %q", key, tomltext.Value(v), Choices(name)[0], Choices(name)[1])
		}
		if c.Chosen == nil {
			c.Chosen = map[string]string{}
		}
		c.Chosen[name] = text
		return nil
	})
}

// keys are the keys of nhc.toml.
var keys = []string{"mode", "config_errors", "[[check]]", "[policy.NAME]", "[active]", "[output]", "[guard]", "[remedy.NAME]", "[healthcheck]", "[prolog]", "[epilog]"}

func hasRole(context string) bool {
	_, ok := defaultRoles[context]
	return ok
}

// decoder collects the errors of a file.
type decoder struct {
	file string
	md   toml.MetaData
	errs []error
}

func (d *decoder) add(err error) { d.errs = append(d.errs, tomltext.Place(d.file, err)) }

// taker lets the decoder add the position to an error.
type taker struct{ take func(any) error }

// UnmarshalTOML implements [toml.Unmarshaler].
func (t *taker) UnmarshalTOML(v any) error { return t.take(v) }

// value passes a value to take, and adds the line to its error.
func (d *decoder) value(p toml.Primitive, take func(any) error) {
	if err := d.md.PrimitiveDecode(p, &taker{take}); err != nil {
		d.add(err)
	}
}

// table passes the values of a table to the functions of their keys.
func (d *decoder) table(name string, p toml.Primitive, keys map[string]func(any) error) {
	var table map[string]toml.Primitive
	if err := d.md.PrimitiveDecode(p, &table); err != nil {
		d.add(err)
		return
	}
	for _, key := range slices.Sorted(maps.Keys(table)) {
		d.value(table[key], func(v any) error {
			take, ok := keys[key]
			if !ok && key == "hosts" && strings.HasPrefix(name, "policy.") {
				return fmt.Errorf("key %s.hosts: want a [[check]] with hosts and action: a policy is for all hosts", name)
			}
			if !ok {
				return fmt.Errorf("unknown key %s.%s: want %s", name, key, spell.OneOf(key, slices.Sorted(maps.Keys(keys))))
			}
			if err := take(v); err != nil {
				return fmt.Errorf("%s.%s: %w", name, key, err)
			}
			return nil
		})
	}
}

// active reads [active], the settings of the active tests.
func (d *decoder) active(p toml.Primitive) (env []string, at Pos) {
	d.table("active", p, map[string]func(any) error{"nccl_env": func(v any) error {
		list, ok := v.([]any)
		for _, item := range list {
			word, isText := item.(string)
			ok = ok && isText
			env = append(env, word)
		}
		if !ok {
			return fmt.Errorf("%s: want a list of texts, such as [\"NCCL_IB_HCA=mlx5\"]", tomltext.Value(v))
		}
		return nil
	}})
	var table map[string]toml.Primitive
	if d.md.PrimitiveDecode(p, &table) == nil && len(env) > 0 {
		at = d.place(table["nccl_env"])
	}
	return env, at
}

// place returns the position of a value. The decoder reveals it only in an error.
func (d *decoder) place(p toml.Primitive) Pos {
	err := d.md.PrimitiveDecode(p, &taker{func(any) error { return errors.New("where is it") }})
	if parse, ok := errors.AsType[toml.ParseError](err); ok {
		return Pos{d.file, parse.Position.Line}
	}
	return Pos{File: d.file}
}

// longest is the maximum of a setting in seconds.
const longest = time.Hour

func (d *decoder) role(name string, p toml.Primitive) Role {
	r := defaultRoles[name]
	keys := map[string]func(any) error{"budget": seconds(&r.Budget, 1)}
	if name != HealthCheck {
		keys["mark"] = word(map[string]func(){"drain": func() { r.Exit = false }, "exit": func() { r.Exit = true }})
	}
	if name == Epilog {
		keys["grace"] = seconds(&r.Grace, 0)
		keys["leftovers"] = word(map[string]func(){"report": func() { r.End = false }, "end": func() { r.End = true }})
	}
	d.table(name, p, keys)
	return r
}

// seconds returns a function that reads a number of seconds, at least least.
func seconds(to *time.Duration, least float64) func(any) error {
	return func(v any) error {
		n := -1.0
		switch v := v.(type) {
		case int64:
			n = float64(v)
		case float64:
			n = v
		}
		if !(n >= least && n <= longest.Seconds()) {
			return fmt.Errorf("%s: want seconds, %.0f to %.0f", tomltext.Value(v), least, longest.Seconds())
		}
		*to = time.Duration(n * float64(time.Second))
		return nil
	}
}

// word returns a function that reads one of some words.
func word(words map[string]func()) func(any) error {
	return func(v any) error {
		name, _ := v.(string)
		use, ok := words[name]
		if !ok {
			return fmt.Errorf("%s: want one of %s", tomltext.Value(v), strings.Join(slices.Sorted(maps.Keys(words)), ", "))
		}
		use()
		return nil
	}
}
