package checks

import (
	"errors"
	"fmt"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"time"
)

// UsageKind tells the kinds of usage errors apart.
type UsageKind int

// The kinds of usage errors.
const (
	BadOption   UsageKind = iota // an option the check does not know
	NoArgument                   // an option without its argument
	Surplus                      // a word too many
	BadValue                     // a word of the wrong form
	BadKey                       // a TOML key the check does not know
	MissingWord                  // a required word is missing
)

// UsageError says what is wrong with the words of a check.
type UsageError struct {
	Kind UsageKind
	Word string // the option letter, the word or the key
	Name string // what the check was told to call itself (-C), if it was
	Want string // what would be right
}

func (e *UsageError) Error() string {
	switch e.Kind {
	case BadOption:
		return fmt.Sprintf("invalid option -%s, want %s", e.Word, e.Want)
	case NoArgument:
		return fmt.Sprintf("option -%s requires an argument", e.Word)
	case Surplus:
		return fmt.Sprintf("surplus argument %q, want %s", e.Word, e.Want)
	case BadKey:
		return fmt.Sprintf("unknown key %q, want one of %s", e.Word, e.Want)
	case MissingWord:
		return fmt.Sprintf("missing argument, want %s", e.Want)
	default:
		return fmt.Sprintf("bad value %q, want %s", e.Word, e.Want)
	}
}

// Getopts walks args as bash's getopts does with a silent spec (":0rf:"): it
// calls each for every option, and returns the words left over. An option may
// be bundled (-0r) and may carry its argument (-fHOME); "--" ends the options.
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
				return args, &UsageError{Kind: BadOption, Word: word[i : i+1], Want: "one of " + letters(spec)}
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

func letters(spec string) string {
	var b strings.Builder
	for i := 0; i < len(spec); i++ {
		if spec[i] != ':' {
			if b.Len() > 0 {
				b.WriteByte(' ')
			}
			b.WriteString("-" + spec[i:i+1])
		}
	}
	return b.String()
}

// Bind fills a check from the words behind its name in nhc.conf. A check with
// a grammar of its own implements Bind([]string) error; every other is bound by
// its field tags: `opt:"f"` names an option letter (a bool field takes no
// argument, a slice collects), `arg:"1"` a position, `arg:"*"` the words left.
func Bind(c Check, args []string) error {
	if b, ok := c.(interface{ Bind([]string) error }); ok {
		return b.Bind(args)
	}
	err := BindTags(c, args)
	if usage, ok := errors.AsType[*UsageError](err); ok {
		if n, ok := c.(interface{ calledAs() string }); ok {
			usage.Name = n.calledAs()
		}
	}
	return err
}

// BindTags binds words by the field tags of the struct that c points to.
func BindTags(c any, args []string) error {
	v := reflect.ValueOf(c).Elem()
	opts := map[byte]reflect.Value{}
	positions := map[int]reflect.Value{}
	var rest reflect.Value
	var spec strings.Builder
	most := 0
	for i := 0; i < v.NumField(); i++ {
		tag := v.Type().Field(i).Tag
		if o := tag.Get("opt"); o != "" {
			opts[o[0]] = v.Field(i)
			spec.WriteString(o[:1])
			if v.Field(i).Kind() != reflect.Bool {
				spec.WriteByte(':')
			}
		}
		switch a := tag.Get("arg"); a {
		case "":
		case "*":
			rest = v.Field(i)
		default:
			n, err := strconv.Atoi(a)
			if err != nil {
				panic(fmt.Sprintf("checks: tag arg:%q of %T", a, c))
			}
			positions[n] = v.Field(i)
			most = max(most, n)
		}
	}
	var bad error
	set := func(f reflect.Value, word string) {
		if err := setField(f, word); err != nil && bad == nil {
			bad = err
		}
	}
	words := args
	if len(opts) > 0 {
		var err error
		words, err = Getopts(spec.String(), args, func(o byte, arg string) {
			if f := opts[o]; f.Kind() == reflect.Bool {
				f.SetBool(true)
			} else {
				set(f, arg)
			}
		})
		if err != nil {
			return err
		}
	}
	for i, w := range words {
		switch f, ok := positions[i+1]; {
		case ok:
			set(f, w)
		case rest.IsValid():
			set(rest, w)
		default:
			return &UsageError{Kind: Surplus, Word: w, Want: fmt.Sprintf("at most %d", most)}
		}
	}
	return bad
}

func setField(f reflect.Value, word string) error {
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
		n, err := strconv.ParseFloat(strings.TrimSuffix(word, "s"), 64)
		if err != nil || n < 0 {
			return &UsageError{Kind: BadValue, Word: word, Want: "seconds"}
		}
		*p = time.Duration(n * float64(time.Second))
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
	v := reflect.ValueOf(c).Elem()
	fields := map[string]reflect.Value{}
	for i := 0; i < v.NumField(); i++ {
		if name := v.Type().Field(i).Tag.Get("toml"); name != "" {
			fields[name] = v.Field(i)
		}
	}
	known := make([]string, 0, len(fields))
	for n := range fields {
		known = append(known, n)
	}
	sort.Strings(known)
	keys := make([]string, 0, len(table))
	for k := range table {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		f, ok := fields[k]
		if !ok {
			return &UsageError{Kind: BadKey, Word: k, Want: strings.Join(known, ", ")}
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
			case float64: // what has been sent to a worker has no other numbers
				text = strconv.FormatFloat(n, 'f', -1, 64)
			default:
				return &UsageError{Kind: BadValue, Word: k, Want: "a string, a number, true or false, or a list of them"}
			}
			if err := setField(f, text); err != nil {
				return err
			}
		}
	}
	if c, ok := c.(interface{ usable() error }); ok { // what Bind would refuse of words
		return c.usable()
	}
	return nil
}
