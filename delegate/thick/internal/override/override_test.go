package override

import (
	"strings"
	"testing"
)

func TestOverrideReplacesKeys(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ conf, over, want string }{
		"both empty":         {`{}`, `{}`, `{}`},
		"new":                {`{"b":1,"a":2}`, `{"d":3,"c":4}`, `{"a":2,"b":1,"c":4,"d":3}`},
		"replaced":           {`{"b":1,"a":2,"c":3}`, `{"a":9}`, `{"a":9,"b":1,"c":3}`},
		"other case":         {`{"logLevel":"info","x":1}`, `{"LOGLEVEL":"debug"}`, `{"LOGLEVEL":"debug","x":1}`},
		"in two cases":       {`{"a":1,"A":2,"b":3}`, `{"a":9}`, `{"a":9,"b":3}`},
		"Kelvin":             {`{"logToStderr":1,"k":1}`, "{\"\u212a\":2,\"logTo\u017ftderr\":3}", "{\"logTo\u017ftderr\":3,\"\u212a\":2}"},
		"escaped":            {`{"\u0061":1}`, `{"a":2}`, `{"a":2}`},
		"two cases of one":   {`{"a":1}`, `{"a":2,"A":3}`, `{"a":2}`},
		"not within others":  {`{"a":{"b":1,"c":2}}`, `{"a":{"b":3}}`, `{"a":{"b":3}}`},
		"null":               {`{"a":1}`, `{"a":null}`, `{"a":null}`},
		"as it is written":   {`{"n":9007199254740993,"f":1.0e2,"o":{"z":1,"a":[2]}}`, `{"x":"<"}`, `{"f":1.0e2,"n":9007199254740993,"o":{"z":1,"a":[2]},"x":"<"}`},
		"of other types":     {`{"name":7,"type":[]}`, `{"x":1}`, `{"name":7,"type":[],"x":1}`},
		"a brace in a value": {`{"a":"},{","b":1}`, `{"b":2}`, `{"a":"},{","b":2}`},
	} {
		over, err := Parse([]byte(tt.over))
		if err != nil {
			t.Fatal(err)
		}
		got, err := over.Apply([]byte(tt.conf))
		if err != nil || string(got) != tt.want {
			t.Errorf("%s: %s, %v; want %s", name, got, err, tt.want)
		}
	}
}

func TestOnlyObjectsAreParsedAndEdited(t *testing.T) {
	t.Parallel()
	for _, odd := range []string{``, `null`, `[]`, `"secret"`, `1`, `{`, `{"a"}`, `{"a":"secret",}`, `{}{}`, "{\"a\":1}\x00", strings.Repeat("[", 20000)} {
		_, err := Parse([]byte(odd))
		_, also := Override{"a": []byte(`1`)}.Apply([]byte(odd))
		if err == nil || also == nil || strings.Contains(err.Error()+also.Error(), "secret") {
			t.Errorf("%.20q: %v, %v", odd, err, also)
		}
	}
}
