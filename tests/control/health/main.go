// Health prints for each object (JSON on standard input) its health by kstatus, and by a script of Argo CD's, the first
// argument.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func value(state *lua.LState, data any) lua.LValue {
	switch typed := data.(type) {
	case map[string]any:
		table := state.NewTable()
		for key, each := range typed {
			table.RawSetString(key, value(state, each))
		}
		return table
	case []any:
		table := state.NewTable()
		for _, each := range typed {
			table.Append(value(state, each))
		}
		return table
	case string:
		return lua.LString(typed)
	case bool:
		return lua.LBool(typed)
	case float64:
		return lua.LNumber(typed)
	case int64:
		return lua.LNumber(typed)
	}
	return lua.LNil
}

func main() {
	script, err := os.ReadFile(os.Args[1])
	check(err)
	for decoder := json.NewDecoder(os.Stdin); decoder.More(); {
		var raw json.RawMessage
		check(decoder.Decode(&raw))
		object := &unstructured.Unstructured{}
		check(object.UnmarshalJSON(raw))
		found, err := status.Compute(object)
		check(err)
		state := lua.NewState()
		state.SetGlobal("obj", value(state, object.Object))
		check(state.DoString(string(script)))
		health := state.Get(-1).(*lua.LTable)
		fmt.Println(found.Status, health.RawGetString("status"))
		state.Close()
	}
}
