package override

import (
	"strings"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

func TestOverrideReplacesKeys(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ conf, over, want string }{
		"new":               {`{"b":1,"a":2}`, `{"d":3,"c":4}`, `{"a":2,"b":1,"c":4,"d":3}`},
		"other case":        {`{"logLevel":"info","LogLevel":1,"x":1}`, `{"LOGLEVEL":"debug"}`, `{"LOGLEVEL":"debug","x":1}`},
		"Kelvin":            {`{"logToStderr":1,"k":1}`, "{\"\u212a\":2,\"logTo\u017ftderr\":3}", "{\"logTo\u017ftderr\":3,\"\u212a\":2}"},
		"escaped":           {`{"\u0061":1}`, `{"a":2}`, `{"a":2}`},
		"two cases of one":  {`{"a":1}`, `{"a":2,"A":3}`, `{"a":2}`},
		"not within others": {`{"a":{"b":1,"c":2}}`, `{"a":{"b":3}}`, `{"a":{"b":3}}`},
		"null":              {`{"a":1}`, `{"a":null}`, `{"a":null}`},
		"as it is written":  {`{"n":9007199254740993,"f":1.0e2,"o":{"z":1,"a":[2]}}`, `{"x":"<"}`, `{"f":1.0e2,"n":9007199254740993,"o":{"z":1,"a":[2]},"x":"<"}`},
	} {
		over, err := Parse([]byte(tt.over))
		nodetest.OK(t, err)
		got, err := over.Apply([]byte(tt.conf))
		nodetest.OK(t, err)
		nodetest.Equal(t, name, string(got), tt.want)
	}
}

func TestOnlyObjectsAreParsedAndEdited(t *testing.T) {
	t.Parallel()
	for _, odd := range []string{``, `null`, `[]`, `"secret"`, `{"a":"secret",}`, `{}{}`, "{\"a\":1}\x00", strings.Repeat("[", 20000)} {
		_, err := Parse([]byte(odd))
		_, also := Override{"a": []byte(`1`)}.Apply([]byte(odd))
		if err == nil || also == nil || strings.Contains(err.Error()+also.Error(), "secret") {
			t.Errorf("%.20q: %v, %v", odd, err, also)
		}
	}
}
