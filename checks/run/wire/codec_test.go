package wire

import (
	"bufio"
	stdbytes "bytes"
	"errors"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// fill sets every field of a struct, down to the fields of its structs, to a value that is not zero.
func fill(v reflect.Value, depth int) {
	if s, ok := reflect.TypeAssert[*checks.Severity](v.Addr()); ok {
		*s = checks.Fail
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth)
	case reflect.Struct:
		for _, f := range v.Fields() {
			if f.CanSet() && depth < 4 {
				fill(f, depth+1)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i), depth)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, depth)
		fill(value, depth)
		v.SetMapIndex(key, value)
	case reflect.Interface:
		if v.NumMethod() == 0 {
			v.Set(reflect.ValueOf("any"))
		}
	case reflect.String:
		v.SetString("a\n\xff")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(-3)
	default:
		if v.CanUint() {
			v.SetUint(200)
		}
	}
}

// Every field of a message reaches the other side: one that a codec does not name is lost here.
func TestEveryFieldArrives(t *testing.T) {
	t.Parallel()
	for _, kind := range []message{new(Request), new(Response), new(Vars), new(FileInfo)} {
		of := reflect.TypeOf(kind).Elem()
		for i := range of.NumField() {
			sent, got := reflect.New(of), reflect.New(of)
			fill(sent.Elem().Field(i), 0)
			text, err := Append([]byte("before"), sent.Interface().(message))
			if err != nil {
				t.Fatalf("%s.%s: %v", of, of.Field(i).Name, err)
			}
			if err := Read(bufio.NewReader(stdbytes.NewReader(text[len("before"):])), math.MaxInt32, got.Interface().(message)); err != nil {
				t.Fatalf("%s.%s: %v", of, of.Field(i).Name, err)
			}
			if got.Elem().Field(i).IsZero() {
				t.Errorf("%s.%s does not arrive", of, of.Field(i).Name)
			}
			got.Elem().Field(i).SetZero()
			if !got.Elem().IsZero() {
				t.Errorf("%s.%s arrives in another field: %+v", of, of.Field(i).Name, got)
			}
		}
	}
}

// What a check has set in a finding reaches the other side. Only the supervisor sets the rest.
func TestEveryFieldOfFindingArrives(t *testing.T) {
	t.Parallel()
	sent, got := &Response{Findings: make([]checks.Finding, 1)}, new(Response)
	fill(reflect.ValueOf(&sent.Findings[0]).Elem(), 0)
	text, err := Append(nil, sent)
	if err != nil {
		t.Fatal(err)
	}
	if err := Read(bufio.NewReader(stdbytes.NewReader(text)), math.MaxInt32, got); err != nil || len(got.Findings) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	for field, v := range reflect.ValueOf(got.Findings[0]).Fields() {
		if v.IsZero() && field.Name != "Check" && field.Name != "Silenced" {
			t.Errorf("%s does not arrive", field.Name)
		}
	}
}

func TestMessages(t *testing.T) {
	t.Parallel()
	whole := &Request{
		ID: 7, Op: OpExec, Args: []string{"a", "", "\x00\n"}, Table: map[string]any{"a": 1.5, "b": []any{"c"}}, Over: map[string]string{"A": "", "": "b"},
		Vars: &Vars{Arrays: map[string][]string{"A": {"b", ""}}, WantedGPUs: 8}, Timeout: -1, End: math.MaxInt64, Data: []byte("\xff\x00"), Mode: math.MaxUint32,
	}
	one, err := Append(nil, whole)
	if err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(io.MultiReader(stdbytes.NewReader(one), stdbytes.NewReader(one)))
	for range 2 {
		got := new(Request)
		if err := Read(r, len(one), got); err != nil || !reflect.DeepEqual(got, whole) {
			t.Errorf("%+v, %v\nwant %+v", got, err, whole)
		}
	}
	if err := Read(r, len(one), new(Request)); err != io.EOF { //nolint:errorlint // itself, as the callers want it
		t.Errorf("at the end: %v", err)
	}
	if _, err := Append(nil, &Request{Table: map[string]any{"a": math.NaN()}}); err == nil {
		t.Error("a value without an encoding is sent")
	}
	for name, c := range map[string]struct {
		text, want string
		is         error
	}{
		"text":              {"nothing found\n", `not a message: "nothing found\n"`, ErrMessage},
		"a long text":       {strings.Repeat("x", 1000), "not a message: \"" + strings.Repeat("x", 60) + `"`, ErrMessage},
		"a short text":      {"x", `not a message: "x"`, ErrMessage},
		"a part":            {string(one[:len(one)-1]), "unexpected EOF", io.ErrUnexpectedEOF},
		"a part of a head":  {string(one[:3]), "unexpected EOF", io.ErrUnexpectedEOF},
		"a large message":   {"\x01\xff\xff\xff\xff", "not a message: 4294967295 bytes, limit 100", ErrMessage},
		"a field too many":  {"\x01\x02\x00\x00\x00\xff\x00", "not a message", ErrMessage},
		"fields in reverse": {"\x01\x06\x00\x00\x00\x03\x01a\x02\x01b", "not a message", ErrMessage},
		"a short string":    {"\x01\x02\x00\x00\x00\x03\x7f", "not a message", ErrMessage},
		"a long list":       {"\x01\x03\x00\x00\x00\x04\x7f\x00", "not a message", ErrMessage},
		"no number":         {"\x01\x02\x00\x00\x00\x01\xff", "not a message", ErrMessage},
		"a part of a part":  {"\x01\x04\x00\x00\x00\x08\x04\x01\x7f", "not a message", ErrMessage},
		"invalid JSON":      {"\x01\x04\x00\x00\x00\x05\x04x{", "not a message: invalid character 'x' looking for beginning of value", ErrMessage},
	} {
		err := Read(bufio.NewReader(strings.NewReader(c.text)), 100, new(Request))
		if err == nil || err.Error() != c.want || !errors.Is(err, c.is) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

// FuzzMessage reads arbitrary bytes of a broken worker.
func FuzzMessage(f *testing.F) {
	for _, m := range []message{&Response{ID: 1, Text: "x"}, &Response{Lines: [][]byte{{}, []byte("x")}, MIG: map[string][]string{"a": {"b"}}, File: &FileInfo{Size: 3}}} {
		text, _ := Append(nil, m)
		f.Add(text)
		f.Add(append(text, text...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for r := bufio.NewReaderSize(stdbytes.NewReader(data), 64); ; {
			got, again := new(Response), new(Response)
			if Read(r, MaxMessage, got) != nil {
				return
			}
			text, err := Append(nil, got)
			if err != nil {
				t.Fatalf("%+v: %v", got, err)
			}
			if err := Read(bufio.NewReader(stdbytes.NewReader(text)), len(text), again); err != nil {
				t.Fatalf("%+v: %v", got, err)
			}
			if twice, err := Append(nil, again); err != nil || len(twice) != len(text) {
				t.Fatalf("%q, %v, want %q", twice, err, text)
			}
		}
	})
}
