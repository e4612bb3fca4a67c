#!/usr/bin/env bash
# network_hosts.sh COMMAND...: runs a command beside hosts h1, h2 ... that share only this machine's files, processors
# and memory. Each host has a network, a name, shared memory, temporary files and process numbers of its own, and one
# port to a switch. `mpirun` starts ranks on them, in their order. When the command ends, or is killed, so do the hosts.
#
#   HOSTS=4 SLOTS=2  number of hosts, and of ranks on each
#   RATE=            speed of a port in each direction, in Mb/s (none: as fast as the processors)
#
# The command finds in $HOSTS_FOLDER: a file for each host with the number of its first process, which `host NAME
# COMMAND...` uses to run something there and whose end is the end of the host; `rate SPEED` changes the speed of all
# ports; `bytes` prints NAME SENT RECEIVED of each. Exit code: the command's; 77 where this machine cannot make hosts.
set -euo pipefail

if [[ ${HOSTS_STAGE:-} != network ]]; then
  for tool in ip tc unshare nsenter setpriv mpirun; do
    PATH=$PATH:/usr/sbin:/sbin command -v "$tool" >/dev/null || { echo "no hosts here: $tool is missing" && exit 77; }
  done
  # All that follows lives in namespaces that end with this process, and with them every process, mount and port.
  spaces=(--net --uts --ipc --mount --pid --fork --kill-child --mount-proc)
  unshare "${spaces[@]}" true 2>/dev/null || { echo "no hosts here: making namespaces needs rights" && exit 77; }
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  trap 'kill "$inside" 2>/dev/null' TERM INT
  HOSTS_STAGE=network HOSTS_FOLDER=$folder setpriv --pdeathsig KILL unshare "${spaces[@]}" "$(readlink -f "$0")" "$@" &
  inside=$!
  code=0
  wait "$inside" || code=$?
  while kill -0 "$inside" 2>/dev/null; do wait "$inside" || code=$?; done
  exit "$code"
fi

hosts=${HOSTS:-4} slots=${SLOTS:-2} folder=$HOSTS_FOLDER
export PATH=$PATH:/usr/sbin:/sbin:$folder

# ---- what the command finds ------------------------------------------------------------------------------------------

cat >"$folder/host" <<END
#!/usr/bin/env bash
first=\$(cat "$folder/\$1")
shift
exec nsenter --target "\$first" --net --uts --ipc --mount --pid --wd="\$PWD" -- "\$@"
END
# mpirun calls it as it would call ssh, which does not end when the other side has lost its power.
cat >"$folder/agent" <<END
#!/usr/bin/env bash
name=\$1
shift
"$folder/host" "\$name" bash -c "\$*"
code=\$?
if [[ -e $folder/\$name.off ]]; then exec sleep 1000; fi
exit "\$code"
END
cat >"$folder/crash" <<END
#!/usr/bin/env bash
kill -KILL "\$(cat "$folder/\$1")"
END
cat >"$folder/power_off" <<END
#!/usr/bin/env bash
touch "$folder/\$1.off"
ip link set "\$1" down
"$folder/crash" "\$1"
END
# At each end of a port the other hosts have equal shares, as a switch deals with its ports in turn; the last class is for
# mpirun's own messages. Nothing is dropped: a queue holds what all ranks have under way to one port.
cat >"$folder/rate" <<END
#!/usr/bin/env bash
set -e
limit() { # limit DEVICE src|dst COMMAND...: on the host that the command leads to
  local device=\$1 side=\$2 i
  shift 2
  "\$@" tc qdisc delete dev "\$device" root 2>/dev/null || true
  "\$@" tc qdisc add dev "\$device" root handle 1: htb default \$((hosts + 1))
  "\$@" tc class add dev "\$device" parent 1: classid 1:1000 htb rate "\${speed}mbit" burst 64kb cburst 64kb quantum 60000
  for ((i = 1; i <= hosts + 1; ++i)); do
    "\$@" tc class add dev "\$device" parent 1:1000 classid "1:\$i" htb rate "\$((1000 * speed / (hosts + 1)))kbit" \\
      ceil "\${speed}mbit" burst 64kb cburst 64kb quantum 60000
    "\$@" tc filter add dev "\$device" parent 1: protocol ip prio 1 u32 match ip "\$side" "10.61.94.\$i" flowid "1:\$i"
  done
}
speed=\$1 hosts=$hosts
for name in \$(cut -d ' ' -f 1 "$folder/hosts"); do
  [[ -e /proc/\$(cat "$folder/\$name") ]] || continue # the host has ended
  limit "\$name" src env
  limit eth0 dst "$folder/host" "\$name"
done
END
cat >"$folder/bytes" <<END
#!/usr/bin/env bash
for name in \$(cut -d ' ' -f 1 "$folder/hosts"); do
  [[ -e /sys/class/net/\$name ]] || continue
  echo "\$name \$(cat "/sys/class/net/\$name/statistics/rx_bytes" "/sys/class/net/\$name/statistics/tx_bytes" | tr '\\n' ' ')"
done
END
chmod +x "$folder"/{host,agent,crash,power_off,rate,bytes}

# ---- the hosts -------------------------------------------------------------------------------------------------------

hostname switch
mount -t sysfs sysfs /sys # shows this network
ip link set lo up
ip link add br0 type bridge
ip link set br0 addrgenmode none
ip link set br0 address 02:00:00:00:00:fa # else it is that of a port, and changes when its host ends
ip link set br0 mtu 9000
ip addr add 10.61.94.250/24 dev br0
ip link set br0 up
echo "127.0.0.1 localhost" >"$folder/names"
echo "10.61.94.250 switch" >>"$folder/names"
for ((i = 1; i <= hosts; ++i)); do
  echo "10.61.94.$i h$i" >>"$folder/names"
  echo "h$i slots=$slots" >>"$folder/hosts"
done
mount --bind "$folder/names" /etc/hosts
mkdir "$folder/tmp"

# Body of a host's first process, which adopts and buries what loses its parent.
read -r -d '' body <<'END' || true
set -e
read -r number _ </proc/self/stat # outside of the host
hostname "$1"
mount -t proc proc /proc
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=1777 tmpfs "$2/tmp"
ip link set lo up
echo "$number" >"$2/$1.new"
mv "$2/$1.new" "$2/$1"
while sleep 1000; do :; done
END
for ((i = 1; i <= hosts; ++i)); do
  unshare --net --uts --ipc --mount --pid --fork --kill-child bash -c "$body" host "h$i" "$folder" \
    2>>"$folder/errors" &
done
for ((i = 1; i <= hosts; ++i)); do
  for ((tries = 0; tries < 200; ++tries)); do [[ ! -e $folder/h$i ]] || break && sleep 0.05; done
  [[ -e $folder/h$i ]] || { cat "$folder/errors" && exit 1; }
  ip link add "h$i" type veth peer name eth0 netns "$(cat "$folder/h$i")"
  ip link set "h$i" addrgenmode none master br0 mtu 9000 up
  host "h$i" ip link set eth0 addrgenmode none mtu 9000
  host "h$i" ip addr add "10.61.94.$i/24" dev eth0
  host "h$i" ip link set eth0 up
  host "h$i" sysctl -q -w net.ipv4.tcp_congestion_control=reno
done
if [[ -n ${RATE:-} ]]; then rate "$RATE"; fi

# ---- the command -----------------------------------------------------------------------------------------------------

# The ranks of all hosts share the processors: one that waits lets others run.
export TMPDIR=$folder/tmp OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} HOME=${HOME:-/root} OMPI_MCA_mpi_yield_when_idle=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_MCA_plm=ssh PRTE_MCA_plm_ssh_agent=$folder/agent PRTE_MCA_prte_default_hostfile=$folder/hosts
unset HOSTS_STAGE HOSTS SLOTS RATE
trap 'kill "$command" 2>/dev/null' TERM INT
"$@" &
command=$!
code=0
wait "$command" || code=$?
exit "$code"
