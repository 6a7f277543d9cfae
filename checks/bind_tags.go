package checks

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// BindTags binds arguments by the field tags of the struct that c points to.
func BindTags(c any, args []string) error {
	t := TagsOf(reflect.ValueOf(c).Elem())
	var bad error
	set := func(f reflect.Value, word string) {
		if err := SetField(f, word); err != nil && bad == nil {
			bad = err
		}
	}
	words, err := t.takeLongs(args, set)
	if err != nil {
		return err
	}
	words, err = t.takeLetters(words, set)
	if usage, ok := errors.AsType[*UsageError](err); ok && usage.Kind == BadOption && len(t.longs) > 0 {
		usage.Want = t.listOptions()
	}
	if err != nil {
		return err
	}
	for i, w := range words {
		switch f, ok := t.positions[i+1]; {
		case ok:
			set(f, w)
		case t.rest.IsValid():
			set(t.rest, w)
		default:
			return &UsageError{Kind: Surplus, Word: w, Want: fmt.Sprintf("at most %d", t.most)}
		}
	}
	return bad
}

// Tags holds the fields of a check, by option, TOML key and position.
type Tags struct {
	opts      map[byte]reflect.Value
	longs     map[string]reflect.Value
	Tables    map[string]reflect.Value // by TOML key
	positions map[int]reflect.Value
	rest      reflect.Value
	spec      string // option letters in getopts syntax
	most      int    // the highest position
}

// TagsOf collects the field tags of a struct.
func TagsOf(v reflect.Value) *Tags {
	t := &Tags{opts: map[byte]reflect.Value{}, longs: map[string]reflect.Value{}, Tables: map[string]reflect.Value{}, positions: map[int]reflect.Value{}}
	t.add(v)
	return t
}

func (t *Tags) add(v reflect.Value) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if field.Anonymous {
			t.add(v.Field(i))
			continue
		}
		tag := field.Tag
		if o := tag.Get("opt"); o != "" {
			t.opts[o[0]] = v.Field(i)
			t.spec += o[:1]
			if v.Field(i).Kind() != reflect.Bool {
				t.spec += ":"
			}
		}
		if l := tag.Get("long"); l != "" {
			t.longs[l] = v.Field(i)
		}
		if k := tag.Get("toml"); k != "" {
			t.Tables[k] = v.Field(i)
		}
		switch a := tag.Get("arg"); a {
		case "":
		case "*":
			t.rest = v.Field(i)
		default:
			n, err := strconv.Atoi(a)
			if err != nil {
				panic(fmt.Sprintf("checks: tag arg:%q of %s", a, v.Type()))
			}
			t.positions[n] = v.Field(i)
			t.most = max(t.most, n)
		}
	}
}

// listOptions lists all options for an error message.
func (t *Tags) listOptions() string {
	return strings.TrimSuffix("one of "+listLetters(t.spec), " ") + " --" + strings.Join(slices.Sorted(maps.Keys(t.longs)), " --")
}

// takeLetters takes the letter options out of args. If the check also has long options, letter
// options can follow other arguments: check_nccl all_reduce -b 8G. Otherwise, as in LBNL NHC
// and bash's getopts, options end at the first other argument.
func (t *Tags) takeLetters(args []string, set func(reflect.Value, string)) (rest []string, err error) {
	if len(t.opts) == 0 && len(t.longs) == 0 {
		return args, nil
	}
	var behind []string
	if at := slices.Index(args, "--"); at >= 0 && len(t.longs) > 0 {
		args, behind = args[:at], args[at+1:]
	}
	for {
		args, err = Getopts(t.spec, args, func(o byte, arg string) {
			if f := t.opts[o]; f.Kind() == reflect.Bool {
				f.SetBool(true)
			} else {
				set(f, arg)
			}
		})
		if err != nil || len(t.longs) == 0 {
			return args, err
		}
		if len(args) == 0 {
			return append(rest, behind...), nil
		}
		rest, args = append(rest, args[0]), args[1:]
	}
}

// takeLongs takes the long options out of args, at any place before "--". If the check has no
// long options, it returns args unchanged.
func (t *Tags) takeLongs(args []string, set func(reflect.Value, string)) (rest []string, err error) {
	if len(t.longs) == 0 {
		return args, nil
	}
	for len(args) > 0 {
		word := args[0]
		args = args[1:]
		if word == "--" {
			return append(append(rest, word), args...), nil
		}
		name, isLong := strings.CutPrefix(word, "--")
		if !isLong {
			rest = append(rest, word)
			continue
		}
		name, value, given := strings.Cut(name, "=")
		f, ok := t.longs[name]
		switch {
		case !ok:
			return nil, &UsageError{Kind: BadOption, Word: "-" + name, Want: t.listOptions()}
		case f.Kind() == reflect.Bool && !given:
			f.SetBool(true)
			continue
		case !given && len(args) == 0:
			return nil, &UsageError{Kind: NoArgument, Word: "-" + name}
		case !given:
			value, args = args[0], args[1:]
		}
		set(f, value)
	}
	return rest, nil
}
