/*
 * Builds and tests the Java side: the shim (java-shim), the one jar that carries it together with the native library,
 * and the classes of the end-to-end tests and of the benchmark.
 *
 * Tasks: pluginDir (the jar, in build/plugin), junit (tests of the shim on the real library), check,
 *   e2eClasses, benchClasses -PkafkaLibs=DIRECTORY (tests/e2e, tests/bench, compiled against the jars of a broker).
 * Properties: nativeLibrary (instead of target/release/liballuvium.so), nativePlatform (what it is built for, instead of
 *   this machine, such as linux-aarch64-musl), checkJni (junit under -Xcheck:jni),
 *   junitClass (one class only).
 *
 * The script keeps to what Gradle 4.4.1 (Debian's) and Gradle 8 both offer: no task-avoidance API, no toolchains, and JUnit 5
 * through its own console launcher.
 */
import java.io.ByteArrayOutputStream
import java.io.File
import java.io.OutputStream

plugins {
    `java-library`
}

group = "io.alluvium"
version = Regex("(?m)^version = \"([^\"]+)\"").find(file("Cargo.toml").readText())!!.groupValues[1]

// The oldest broker supported is what the shim is compiled against; the newest with all test jars is what it is tested on.
val oldestKafka = "3.9.2"
val testedKafka = "4.3.1"
val slf4j = "1.7.36"
val jupiter = "5.10.2"
val junitPlatform = "1.10.2"

val shimRelease = 11
val testRelease = 17

repositories { mavenCentral() }

dependencies {
    "compileOnly"("org.apache.kafka:kafka-storage-api:$oldestKafka")
    "compileOnly"("org.apache.kafka:kafka-clients:$oldestKafka")
    "compileOnly"("org.slf4j:slf4j-api:$slf4j")
    "testImplementation"("org.apache.kafka:kafka-storage-api:$testedKafka")
    "testImplementation"("org.apache.kafka:kafka-clients:$testedKafka")
    "testImplementation"("org.slf4j:slf4j-api:$slf4j")
    "testImplementation"("org.junit.jupiter:junit-jupiter:$jupiter")
    "testRuntimeOnly"("org.slf4j:slf4j-simple:$slf4j")
    "testRuntimeOnly"("org.junit.platform:junit-platform-console:$junitPlatform")
}

val sets = project.property("sourceSets") as SourceSetContainer
val mainSet = sets.getByName("main")
val testSet = sets.getByName("test")
mainSet.java.setSrcDirs(listOf("java-shim/src/main/java"))
mainSet.resources.setSrcDirs(listOf("java-shim/src/main/resources"))
testSet.java.setSrcDirs(listOf("java-shim/src/test/java"))
testSet.resources.setSrcDirs(listOf("java-shim/src/test/resources"))

tasks.withType(JavaCompile::class.java) {
    val release = if (name == "compileJava") shimRelease else testRelease
    options.encoding = "UTF-8"
    options.compilerArgs.addAll(listOf("--release", "$release", "-Xlint:all,-options,-serial,-processing,-try"))
    if (name != "compileE2eMain") {
        options.compilerArgs.add("-Werror")
    }
}

// ---- the jar -------------------------------------------------------------------------------------------------------

val nativeLibrary = file(if (hasProperty("nativeLibrary")) property("nativeLibrary")!! else "target/release/liballuvium.so")
val machine = if (System.getProperty("os.arch") == "aarch64") "aarch64" else "x86_64"
val platform = if (hasProperty("nativePlatform")) property("nativePlatform").toString() else "linux-$machine-gnu"

val jar = tasks.getByName("jar") as Jar
jar.doFirst {
    if (!nativeLibrary.isFile) {
        throw GradleException("$nativeLibrary is missing: run `cargo build --release -p alluvium-jni` first, or give " +
            "-PnativeLibrary=PATH")
    }
}
jar.from(nativeLibrary.path) {
    into("native/$platform")
    rename { "liballuvium.so" }
}
jar.from("LICENSE") { into("META-INF") }
jar.manifest.attributes(mapOf(
    "Implementation-Title" to "Alluvium",
    "Implementation-Version" to project.version.toString()))
jar.isPreserveFileTimestamps = false
jar.isReproducibleFileOrder = true

val pluginDirectory = File(projectDir, "build/plugin")
val pluginDir = tasks.create("pluginDir", Sync::class.java)
pluginDir.description = "Makes build/plugin, the directory that a broker's class path names."
pluginDir.from(jar)
pluginDir.into(pluginDirectory)

// ---- the tests of the shim -----------------------------------------------------------------------------------------

/** Passes everything on to standard output and keeps a copy. */
class Tee(val kept: ByteArrayOutputStream) : OutputStream() {
    override fun write(byte: Int) {
        kept.write(byte)
        System.out.write(byte)
    }

    override fun write(bytes: ByteArray, offset: Int, length: Int) {
        kept.write(bytes, offset, length)
        System.out.write(bytes, offset, length)
    }

    override fun flush() = System.out.flush()
}

/** What -Xcheck:jni says about calls that came from our natives: the complaint's line, when a frame of ours follows it. */
fun complaintsOfJniCheck(output: String): List<String> {
    val lines = output.lines()
    val complaint = Regex("(WARNING|FATAL ERROR) in native method|WARNING: JNI local refs")
    return lines.withIndex()
        .filter { complaint.containsMatchIn(it.value) }
        .filter { start -> lines.drop(start.index + 1).take(12).any { it.contains("io.alluvium.kafka.Native") } }
        .map { it.value }
}

val checkJni = hasProperty("checkJni")
val junit = tasks.create("junit", Exec::class.java)
junit.description = "Runs the tests of java-shim on the real library."
junit.dependsOn("testClasses", pluginDir)
val testLog = File(projectDir, "build/junit/slf4j.log")
val junitOutput = ByteArrayOutputStream()
junit.standardOutput = Tee(junitOutput)
junit.doFirst {
    testLog.parentFile.mkdirs()
    testLog.delete()
    // The classes under test come from the jar, as in a broker; so its resources and its manifest are tested too.
    val jars = pluginDirectory.listFiles().filter { it.name.endsWith(".jar") }.sorted()
    val testClassPath = testSet.output + testSet.runtimeClasspath - mainSet.output
    val command = mutableListOf(
        File(System.getProperty("java.home"), "bin/java").path, "-Xmx512m", "-Djava.awt.headless=true",
        "-Dalluvium.test.plugin.jar=${jars.single()}",
        "-Dorg.slf4j.simpleLogger.logFile=" + testLog.path,
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=trace",
        "-Dalluvium.test.testkit=" + file("target/release/alluvium-testkit"))
    val hooks = System.getProperty("alluvium.test.hooks.library")
    if (hooks != null) {
        command.add("-Dalluvium.test.hooks.library=" + file(hooks))
        command.add("-Dalluvium.test.hooks.classes=" + testSet.output.classesDirs.asPath)
    }
    if (checkJni) {
        command.add("-Xcheck:jni")
    }
    command.addAll(listOf("-cp", (files(jars) + testClassPath).asPath, "org.junit.platform.console.ConsoleLauncher", "execute",
        "--details", "summary", "--disable-banner", "--disable-ansi-colors"))
    if (project.hasProperty("junitClass")) {
        command.addAll(listOf("--select-class", project.property("junitClass").toString(), "--details", "tree"))
    } else {
        command.addAll(listOf("--scan-classpath", testSet.output.asPath))
    }
    junit.commandLine(command)
}
junit.doLast {
    if (checkJni) {
        val complaints = complaintsOfJniCheck(junitOutput.toString())
        if (complaints.isNotEmpty()) {
            throw GradleException("-Xcheck:jni complains about our natives: " + complaints.distinct().joinToString("; "))
        }
    }
}
tasks.getByName("check").dependsOn(junit)
// The plain test task finds no JUnit 4 tests here; junit takes its place.
tasks.getByName("test").enabled = false

// ---- the classes of the end-to-end tests and of the benchmark ---------------------------------------------------------

val compileHarness = tasks.create("compileHarness", JavaCompile::class.java)
compileHarness.setSource("tests/harness/src/main/java")
compileHarness.destinationDir = File(projectDir, "build/harness/classes")
compileHarness.classpath = files()

/** Compiles tests/NAME/src/SOURCES with what all of them share, against the jars of a broker. */
fun compileAgainstBroker(name: String, sources: String, classes: String): JavaCompile {
    val compile = tasks.create("compile" + (name + sources.capitalize()).capitalize(), JavaCompile::class.java)
    compile.dependsOn(compileHarness)
    compile.setSource("tests/$name/src/$sources/java")
    compile.destinationDir = File(projectDir, "build/$name/$classes")
    val broker = if (hasProperty("kafkaLibs")) fileTree(property("kafkaLibs")!!) else files()
    compile.classpath = broker + files(compileHarness.destinationDir)
    compile.doFirst {
        if (!project.hasProperty("kafkaLibs")) {
            throw GradleException("say against which broker to compile: -PkafkaLibs=DIRECTORY (tests/tools/kafka-libs VERSION prints one)")
        }
    }
    return compile
}

val e2eClasses = tasks.create("e2eClasses")
e2eClasses.description = "Compiles tests/e2e against the jars of a broker."
e2eClasses.dependsOn(compileAgainstBroker("e2e", "main", "classes"))
val benchClasses = tasks.create("benchClasses")
benchClasses.description = "Compiles tests/bench, and the plugin that it is checked with, against the jars of a broker."
benchClasses.dependsOn(compileAgainstBroker("bench", "main", "classes"), compileAgainstBroker("bench", "check", "check"))
