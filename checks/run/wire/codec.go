package wire

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// Encode returns a message as one line of JSON, without its end. By itself encoding/json learns
// the types of all fields of a message before it writes the first one, which takes longer than
// an empty run should. It gets only what is no text, number or list of texts.
func Encode(message any) ([]byte, error) { return encode(nil, reflect.ValueOf(message).Elem()) }

// Decode reads what Encode has written into the message that the pointer names.
func Decode(line []byte, message any) error {
	return decode(bytes.TrimSuffix(line, []byte("\n")), reflect.ValueOf(message).Elem())
}

var errNoMessage = errors.New("no message")

// ours are the types whose fields are encoded one by one, and the names of the fields.
var ours = sync.OnceValue(func() map[reflect.Type][]string {
	types := map[reflect.Type][]string{}
	for _, t := range []reflect.Type{reflect.TypeFor[Request](), reflect.TypeFor[Response](), reflect.TypeFor[Vars](), reflect.TypeFor[FileInfo]()} {
		names := make([]string, t.NumField())
		for i := range names {
			names[i], _, _ = strings.Cut(t.Field(i).Tag.Get("json"), ",")
		}
		types[t] = names
	}
	return types
})

func encode(to []byte, v reflect.Value) (_ []byte, err error) {
	if v.Kind() == reflect.Pointer && ours()[v.Type().Elem()] != nil {
		v = v.Elem()
	}
	names, isOurs := ours()[v.Type()]
	switch value := v.Interface().(type) {
	case []string:
		return encodeList(to, '[', ']', slices.Values(value), appendText), nil
	case map[string]string:
		return encodeList(to, '{', '}', maps.Keys(value), func(to []byte, key string) []byte {
			return appendText(append(appendText(to, key), ':'), value[key])
		}), nil
	case []byte:
		return append(base64.StdEncoding.AppendEncode(append(to, '"'), value), '"'), nil
	}
	switch {
	case isOurs:
		set := func(yield func(int) bool) {
			for i := range names {
				f := v.Field(i)
				if empty := f.IsZero() || (f.Kind() == reflect.Slice || f.Kind() == reflect.Map) && f.Len() == 0; !empty && !yield(i) {
					return
				}
			}
		}
		return encodeList(to, '{', '}', set, func(to []byte, i int) []byte {
			text, failed := encode(append(appendText(to, names[i]), ':'), v.Field(i))
			err = cmp.Or(err, failed)
			return text
		}), err
	case v.Kind() == reflect.String:
		return appendText(to, v.String()), nil
	case v.Kind() == reflect.Bool:
		return strconv.AppendBool(to, v.Bool()), nil
	case v.CanInt():
		return strconv.AppendInt(to, v.Int(), 10), nil
	}
	text, err := json.Marshal(v.Interface())
	return append(to, text...), err
}

func encodeList[T any](to []byte, start, end byte, list iter.Seq[T], add func(to []byte, one T) []byte) []byte {
	to = append(to, start)
	for one := range list {
		if to[len(to)-1] != start {
			to = append(to, ',')
		}
		to = add(to, one)
	}
	return append(to, end)
}

// isPlain reports whether a text stands in JSON as it is.
func isPlain[T string | []byte](text T) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c == '"' || c == '\\' {
			return false
		}
	}
	return utf8.ValidString(string(text))
}

func appendText(to []byte, text string) []byte {
	if isPlain(text) {
		return append(append(append(to, '"'), text...), '"')
	}
	quoted, _ := json.Marshal(text) // never fails for a text
	return append(to, quoted...)
}

func decode(text []byte, v reflect.Value) error {
	plain := len(text) >= 2 && text[0] == '"' && text[len(text)-1] == '"' && isPlain(text[1:len(text)-1])
	names, isOurs := ours()[v.Type()]
	switch {
	case string(text) == "null":
		return nil
	case isOurs:
		return eachMember(text, '{', '}', func(name string, value []byte) error {
			if i := slices.Index(names, name); i >= 0 {
				return decode(value, v.Field(i))
			}
			return nil
		})
	case v.Kind() == reflect.Pointer && ours()[v.Type().Elem()] != nil:
		v.Set(reflect.New(v.Type().Elem()))
		return decode(text, v.Elem())
	case v.Kind() == reflect.String && plain:
		v.SetString(string(text[1 : len(text)-1]))
		return nil
	case v.Type() == reflect.TypeFor[[]byte]() && plain:
		data, err := base64.StdEncoding.AppendDecode(nil, text[1:len(text)-1])
		v.SetBytes(data)
		return err
	case v.Kind() == reflect.Bool:
		b, err := strconv.ParseBool(string(text))
		v.SetBool(b)
		return err
	case v.CanInt():
		n, err := strconv.ParseInt(string(text), 10, v.Type().Bits())
		v.SetInt(n)
		return err
	case v.Type() == reflect.TypeFor[[]string]():
		list := []string{}
		err := eachMember(text, '[', ']', func(_ string, value []byte) error {
			list = append(list, "")
			return decode(value, reflect.ValueOf(&list[len(list)-1]).Elem())
		})
		v.Set(reflect.ValueOf(list))
		return err
	case v.Type() == reflect.TypeFor[map[string]string]():
		table := map[string]string{}
		err := eachMember(text, '{', '}', func(name string, value []byte) (err error) {
			table[name], err = parseText(value)
			return err
		})
		v.Set(reflect.ValueOf(table))
		return err
	}
	return json.Unmarshal(text, v.Addr().Interface())
}

func parseText(text []byte) (s string, err error) {
	return s, decode(text, reflect.ValueOf(&s).Elem())
}

// eachMember calls for each value of a list or an object, which stands without blanks.
func eachMember(text []byte, start, end byte, do func(name string, value []byte) error) error {
	if len(text) < 2 || text[0] != start || text[len(text)-1] != end {
		return errNoMessage
	}
	for rest := text[1:]; len(rest) > 1; {
		name := ""
		if start == '{' {
			n := valueLength(rest)
			if n >= len(rest) || rest[n] != ':' {
				return errNoMessage
			}
			var err error
			if name, err = parseText(rest[:n]); err != nil {
				return err
			}
			rest = rest[n+1:]
		}
		n := valueLength(rest)
		if n == 0 || n >= len(rest) || rest[n] != ',' && n != len(rest)-1 {
			return errNoMessage
		}
		if err := do(name, rest[:n]); err != nil {
			return err
		}
		if rest = rest[n:]; rest[0] == ',' {
			rest = rest[1:]
		}
	}
	return nil
}

// valueLength returns how long the first value of a text is.
func valueLength(text []byte) int {
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
		case (c == '}' || c == ']') && depth > 0:
			depth--
		case depth == 0 && (c == ',' || c == ':' || c == '}' || c == ']'):
			return i
		}
	}
	return len(text)
}
