package rawjson_test

import (
	"testing"

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
