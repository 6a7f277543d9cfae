package checks

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/conf/spell"
)

// UsageKind is the kind of a usage error.
type UsageKind int

// The kinds of usage errors.
const (
	BadOption   UsageKind = iota // the check does not have this option
	NoArgument                   // an option without its argument
	Surplus                      // one argument too many
	BadValue                     // a value that cannot be parsed
	BadKey                       // a TOML key that the check does not have
	MissingWord                  // a required argument is missing
)

// UsageError is an error in the arguments of a check.
type UsageError struct {
	Kind UsageKind
	Word string // the option letter, the argument or the key
	Name string // the name that -C gives the check, "" without -C
	Want string // the values that are allowed
}

func (e *UsageError) Error() string {
	switch e.Kind {
	case BadOption:
		return fmt.Sprintf("invalid option -%s, want %s", e.Word, e.Want)
	case NoArgument:
		return fmt.Sprintf("option -%s requires an argument", e.Word)
	case Surplus:
		return fmt.Sprintf("unexpected argument %q, want %s", e.Word, e.Want)
	case BadKey:
		return fmt.Sprintf("unknown key %q, want %s", e.Word, e.Want)
	case MissingWord:
		return fmt.Sprintf("missing argument, want %s", e.Want)
	default:
		return fmt.Sprintf("bad value %q, want %s", e.Word, e.Want)
	}
}

// Getopts parses args as bash's getopts does with a silent spec (":0rf:"). It calls each for
// every option, and returns the arguments that remain. Options can be bundled (-0r) and can
// carry their argument (-fHOME); "--" ends the options. With "-:" in the spec, "--long" is the
// option "-" with the argument "long".
func Getopts(spec string, args []string, each func(opt byte, arg string)) (rest []string, err error) {
	spec = strings.TrimPrefix(spec, ":")
	for len(args) > 0 {
		word := args[0]
		if word == "--" {
			return args[1:], nil
		}
		if len(word) < 2 || word[0] != '-' {
			break
		}
		args = args[1:]
		for i := 1; i < len(word); i++ {
			at := strings.IndexByte(spec, word[i])
			if at < 0 || word[i] == ':' {
				return args, &UsageError{Kind: BadOption, Word: word[i : i+1], Want: "one of " + listLetters(spec)}
			}
			if at+1 >= len(spec) || spec[at+1] != ':' {
				each(word[i], "")
				continue
			}
			arg := word[i+1:]
			if arg == "" {
				if len(args) == 0 {
					return args, &UsageError{Kind: NoArgument, Word: word[i : i+1]}
				}
				arg, args = args[0], args[1:]
			}
			each(word[i], arg)
			break
		}
	}
	return args, nil
}

func listLetters(spec string) string {
	var b strings.Builder
	for i := 0; i < len(spec); i++ {
		if spec[i] != ':' && spec[i] != '-' {
			if b.Len() > 0 {
				b.WriteByte(' ')
			}
			b.WriteString("-" + spec[i:i+1])
		}
	}
	return b.String()
}

// Bind fills a check from its arguments in nhc.conf. A check with its own syntax implements
// Bind([]string) error. All others are bound by their field tags: `opt:"f"` is an option
// letter (a bool field takes no argument, a slice collects all values), `long:"max-age"` is a
// long option, written --max-age VALUE or --max-age=VALUE, `arg:"1"` is the first argument,
// `arg:"*"` takes the rest. The fields of an embedded struct belong to the check, too.
//
// `in:"20:150 max"` is the range of a number outside which no device is, here of a highest value; min
// is for a lowest one, neither for an exact one. nhc-gpu lint reports other values; 0 is always allowed.
func Bind(c Check, args []string) error {
	if b, ok := c.(interface{ Bind([]string) error }); ok {
		return b.Bind(args)
	}
	err := BindTags(c, args)
	if v, ok := c.(Validator); ok && err == nil {
		err = v.Validate()
	}
	if usage, ok := errors.AsType[*UsageError](err); ok {
		if n, ok := c.(Namer); ok {
			usage.Name = n.CalledAs()
		}
	}
	return err
}

// SetField sets a parameter of a check from an argument in nhc.conf or a TOML value.
func SetField(f reflect.Value, word string) error {
	switch p := f.Addr().Interface().(type) {
	case *string:
		*p = word
	case *[]string:
		*p = append(*p, word)
	case *int:
		n, err := strconv.Atoi(word)
		if err != nil {
			return &UsageError{Kind: BadValue, Word: word, Want: "a whole number"}
		}
		*p = n
	case *float64:
		n, err := strconv.ParseFloat(word, 64)
		if err != nil {
			return &UsageError{Kind: BadValue, Word: word, Want: "a number"}
		}
		*p = n
	case *time.Duration:
		d, ok := ParseTime(word)
		if !ok {
			return &UsageError{Kind: BadValue, Word: word, Want: "seconds, or 15m, 24h, 7d"}
		}
		*p = d
	case *Size:
		n, ok := ParseBytes(word)
		if !ok {
			return &UsageError{Kind: BadValue, Word: word, Want: "a size: 512M, 16G"}
		}
		*p = n
	case *bool:
		b, err := strconv.ParseBool(word)
		if err != nil {
			return &UsageError{Kind: BadValue, Word: word, Want: "true or false"}
		}
		*p = b
	default:
		panic(fmt.Sprintf("checks: cannot bind a field of type %s", f.Type()))
	}
	return nil
}

// BindTable fills a check from a TOML table by its `toml` field tags. A list
// fills a slice; an unknown key is an error that names the known ones.
func BindTable(c Check, table map[string]any) error {
	fields := TagsOf(reflect.ValueOf(c).Elem()).Tables
	known := slices.Sorted(maps.Keys(fields))
	for _, k := range slices.Sorted(maps.Keys(table)) {
		f, ok := fields[k]
		if !ok {
			return &UsageError{Kind: BadKey, Word: k, Want: spell.Want(k, known)}
		}
		words := []any{table[k]}
		if list, ok := table[k].([]any); ok {
			words = list
			if f.Kind() != reflect.Slice {
				return &UsageError{Kind: BadValue, Word: k, Want: "one value, not a list"}
			}
		}
		for _, w := range words {
			text := fmt.Sprint(w)
			switch n := w.(type) {
			case string, bool, int64, int:
			case float64: // JSON to a worker turns every number into a float64
				text = strconv.FormatFloat(n, 'f', -1, 64)
			default:
				return &UsageError{Kind: BadValue, Word: k, Want: "a string, a number, true or false, or a list of them"}
			}
			if err := SetField(f, text); err != nil {
				return err
			}
		}
	}
	if c, ok := c.(Validator); ok { // Bind does the same for arguments
		return c.Validate()
	}
	return nil
}

// BindLine fills a check from its TOML table, or, if that is nil, from its arguments in nhc.conf.
func BindLine(c Check, args []string, table map[string]any) error {
	if table != nil {
		return BindTable(c, table)
	}
	return Bind(c, args)
}

// BindUsable calls BindTags and then the Validate method of the check.
func BindUsable(c Validator, args []string) error {
	if err := BindTags(c, args); err != nil {
		return err
	}
	return c.Validate()
}
