package rawjson_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/internal/rawjson"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

func TestMembers(t *testing.T) {
	t.Parallel()
	for object, want := range map[string]string{
		`{}`: "",
		` {"b": "<" ,"a":[1, {"c":2}],"\u0062":null} `: `b="<" a=[1, {"c":2}] b=null `,
		`{"a":1}}`:  "",
		`{"a":1,`:   "",
		`["a","b"]`: "",
		`null`:      "",
		``:          "",
	} {
		got := ""
		for key, value := range rawjson.Members([]byte(object)) {
			got += key + "=" + string(value) + " "
		}
		nodetest.Equal(t, object, got, want)
	}
	for key := range rawjson.Members([]byte(`{"a":1,"b":2}`)) {
		nodetest.Equal(t, "the first", key, "a")
		break
	}
}

// A thing is what a file has, and holds others that keep what they do not know, too.
type thing struct {
	Inner  string
	Name   string          `json:"name"`
	Part   part            `json:"part,omitzero"`
	Parts  []part          `json:"parts,omitempty"`
	Raw    json.RawMessage `json:"raw,omitempty"`
	Hidden string          `json:"-"`

	rest rawjson.Rest
}

type part struct {
	N    int `json:"n,omitempty"`
	rest rawjson.Rest
}

func (t *thing) UnmarshalJSON(text []byte) error {
	type plain thing
	return rawjson.Decode(text, (*plain)(t), &t.rest)
}

func (t thing) MarshalJSON() ([]byte, error) {
	type plain thing
	return rawjson.Encode(plain(t), t.rest)
}

func (p *part) UnmarshalJSON(text []byte) error {
	type plain part
	return rawjson.Decode(text, (*plain)(p), &p.rest)
}

func (p part) MarshalJSON() ([]byte, error) {
	type plain part
	return rawjson.Encode(plain(p), p.rest)
}

func TestUnknownKeysAreKeptOnEachLevel(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"name":"a"}`: `{"Inner":"","name":"a"}`,
		`{}`:           `{"Inner":"","name":""}`,
		`{"later":{"x":[1,{"y":"}"}]},"Inner":"i","NAME":"a","-":1,"Hidden":"h"}`:                                `{"Inner":"i","name":"a","later":{"x":[1,{"y":"}"}]},"-":1,"Hidden":"h"}`,
		`{"name":"a","part":{"later":1},"parts":[{"n":1},{"n":2,"b":"<&>","a":1e400},{}],"raw":{"unknown":[ ]}}`: `{"Inner":"","name":"a","part":{"later":1},"parts":[{"n":1},{"n":2,"b":"<&>","a":1e400},{}],"raw":{"unknown":[]}}`,
		` { "part" : null , "l\u0061ter" : null } `:                                                              `{"Inner":"","name":"","l\u0061ter":null}`,
		"{\"\":\"\\ud800\",\"name\":\"a\"}":                                                                      `{"Inner":"","name":"a","":"\ud800"}`,
	} {
		var v thing
		nodetest.OK(t, json.Unmarshal([]byte(text), &v))
		got, err := rawjson.Marshal(v)
		nodetest.OK(t, err)
		nodetest.Equal(t, text, string(got), want)
		var again thing
		nodetest.OK(t, json.Unmarshal(got, &again))
		written, err := rawjson.Marshal(&again)
		nodetest.OK(t, err)
		nodetest.Equal(t, text+", again", string(written), want)
	}
}

// What is decoded into a value replaces what the value did not know before.
func TestDecodingReplacesTheRest(t *testing.T) {
	t.Parallel()
	var p part
	nodetest.OK(t, json.Unmarshal([]byte(`{"n":1,"later":1}`), &p))
	nodetest.Equal(t, "the part", p, part{N: 1, rest: `"later":1`}, cmp.AllowUnexported(part{}))
	nodetest.OK(t, json.Unmarshal([]byte(`{"n":2}`), &p))
	nodetest.Equal(t, "the part", p, part{N: 2}, cmp.AllowUnexported(part{}))
	nodetest.Equal(t, "it is zero", p == part{N: 2}, true)
	for _, wrong := range []string{`{"n":"1","later":1}`, `{"n":1,"later":}`, `[]`} {
		if err := json.Unmarshal([]byte(wrong), &p); err == nil {
			t.Errorf("%s: no error", wrong)
		}
	}
	nodetest.OK(t, json.Unmarshal([]byte(`null`), &p))
}

func TestWithReplacesMembersOfTheSameKey(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ before, later, want rawjson.Rest }{
		{``, ``, ``},
		{`"a":1`, ``, `"a":1`},
		{``, `"a":1`, `"a":1`},
		{`"a":1,"b":{"a":2},"c":3`, `"d":4,"b":5`, `"a":1,"c":3,"d":4,"b":5`},
		{`"a":1`, `"\u0061":2`, `"\u0061":2`},
	} {
		nodetest.Equal(t, string(c.before+" with "+c.later), c.before.With(c.later), c.want)
	}
}
